"""One model on several ranks: what each of them holds, and how they meet."""
