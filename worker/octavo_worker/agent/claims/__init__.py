"""Claims: the room for them, class by class, the bells that announce work, and work that goes back to others."""
