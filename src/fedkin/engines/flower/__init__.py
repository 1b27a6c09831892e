"""The flower engine: a real federation, where the data are with the sites and a Flower app carries the messages.

wire     messages as JSON and safetensors: nothing that is read from the network can run code
setup    what every site must know alike: the task, the model, the seeds
site     the client side: answers the server from a site's own data
site_file, site_state    site.toml and the data it points at; private state and models on the site's own disk
client   the Flower ClientApp around a site
line     who is connected, and messages there and back, with a time limit
clients  the `Clients` contract over a line
checks   what an answer may hold
What runs on the server, and the files of a new app, are in `fedkin.deployment`.
"""
