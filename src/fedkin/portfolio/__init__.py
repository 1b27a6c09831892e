"""The portfolio behind `fedkin.auto`: every client gets a combination of members, or its own model where that seems better.

(federation/folds.py cuts a client's training samples into folds: each fold's rest is a further client without test samples)
together  the folds' runs in step with each other: one question to all of them
members   what is trained: ordinary methods in every fold, and what more local steps make of them
evidence  what the members say of samples they have not seen, and the sums that clients tell of it
weights   temperatures, pooled and personal weights, the gate; simplex solves for them
search    which members are trained how far, from a learning rate to the weights; kept lets a killed run go on
outcome   every client's model, tested once; distil teaches it to one network
auto      the procedure, from a federation to a result; join does it for newcomers, whom grown adds to the run
progress  how much of it is done
"""
