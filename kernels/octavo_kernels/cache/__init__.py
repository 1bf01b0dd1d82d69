"""The paged KV cache: its memory, and what is written and copied there. Nothing here attends, or decides which block is
whose."""
