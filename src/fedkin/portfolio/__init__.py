"""The portfolio behind `fedkin.auto`: every client gets the best combination of members, and nobody is harmed.

folds     a client's training samples cut into folds; each fold's rest is a further client, test samples are left out
together  the folds' runs in step with each other: one question to all of them
members   what is trained: Local, FedAvg, Kin, pFedBayes, and what more local steps make of them
evidence  what the members predict for samples they have not seen, and the sums that clients tell of it
weights   temperatures, pooled and personal weights, the gate
auto      the procedure
"""
