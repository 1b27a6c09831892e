"""A real federation on Flower: the server's side of it, the files of a new app, certificates and keys.

server       the Flower ServerApp: an ordinary `Run` whose clients are at the sites
new_app      the files of a new app, from templates/
credentials  its certificates and keys
membership   sites that come and go
check        every site's condition, before anything is trained; asking: the operator's side of it
ports        whether a port is free
"""
