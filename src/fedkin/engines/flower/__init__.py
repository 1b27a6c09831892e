"""The flower engine: a real federation, where the data are with the sites and a Flower app carries the messages.

wire     messages as JSON and safetensors: nothing that is read from the network can run code
setup    what every site must know alike: the task, the model, the seeds
site     the client side: answers the server from a site's own data
site_file, site_state    site.toml and the data it points at; private state and models on the site's own disk
policy   what may leave a site, and the audit of what left
client   the Flower ClientApp around a site
line     who is connected, and messages there and back, with a time limit
clients  the `Clients` contract over a line
messages what a site may say: a strict schema per kind of message
checks   what the tensors of an answer may be
roll     the roll call before a run: who is there, and who is left out
register who may speak for whom: clients are bound to a site's key and to their data
What runs on the server, and the files of a new app, are in `fedkin.deployment`.
"""
