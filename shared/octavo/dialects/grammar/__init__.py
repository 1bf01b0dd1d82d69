"""Grammars that a text must follow, and their trial in processes of their own. Needs the extra `grammar`."""
