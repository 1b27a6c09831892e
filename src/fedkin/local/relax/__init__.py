"""FedRelax on the client side: public points, stacked linear models, and learners of any kind."""
