"""The flower engine: a real federation, where the data are with the sites and a Flower app carries the messages.

wire     messages as JSON and safetensors: nothing that is read from the network can run code
site     the client side: a site's own data, private state and models on its own disk
client   the Flower ClientApp around a site
line     who is connected, and messages there and back, with a time limit
clients  the `Clients` contract over a line
checks   what an answer may hold
server   the Flower ServerApp: an ordinary `Run` with these clients
deploy   the files of a new app, its certificates and keys
"""
