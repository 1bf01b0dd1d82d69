"""The clerk: it validates, submits, harvests and finishes batches, and removes what has expired. Any number of clerks
share the work; each batch has one owner. It never touches the path of a token."""
