"""States of recurrent layers: slots of sequences, moves of steps, snapshots, and requests that wait for one."""
