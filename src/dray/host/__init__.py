"""This machine as the processes on it need it: files that are whole and private, sockets with one owner, namespaces.

Used by node agent, drivers, certificates and the demo's supervisor; it knows nothing of Kubernetes.
"""
