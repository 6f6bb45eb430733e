"""Generation over the stages of a pipeline: in one process by threads, or over MPI ranks.

Rooms, lowest first; a room imports only rooms before it:
wire (messages and their bytes), supervise (processes and their loss), run (scheduler, stages,
drafts), planning (split and strategy, tried in virtual time), mpi (ranks).
"""
