"""Recurrent layers: their sizes as configs state them, and slots of states in memory."""
