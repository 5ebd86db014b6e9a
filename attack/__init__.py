"""The standing adversary: hostile requests, clients, node agents, drivers and files, against a server of its own.

`python -m attack` (or `make attack`) starts `dray server` on 127.0.0.1, attacks it for a
number of requests, and fails on any process death, any traceback, any 5xx that kube-apiserver
would not give, a heartbeat that stops, or memory that grows. It never speaks to a server that it
has not started itself, and every loop of it ends after a count or a time.

| module | what it holds |
|---|---|
| `templates` | one valid object of every kind and version: where every request begins |
| `mutation` | objects that differ from a valid one in one field, found through the schema |
| `policies` | webhooks and admission policies: tried as dry runs, and those that are in force |
| `custom_kinds` | custom kinds: one made to be attacked, and those that dray brings |
| `species` | the corpus: valid objects by kind and version |
| `vocabulary` | content types, query parameters, patch directives |
| `requests` | verbs, patches, queries, content types: from objects to requests |
| `wire` | connections that send requests at a high rate |
| `fuzzing` | worker processes that send requests and classify the answers |
| `bombs` | single requests that try to cost more than they should |
| `clients` | clients that do not read, do not finish, or come in great numbers |
| `agents` | node agents that answer with anything but logs |
| `webhooks` | admission webhooks that answer with anything but a verdict |
| `drivers` | drivers that answer the node agent with anything but what was asked |
| `files` | stores, keys and checkpoints that were damaged while nobody ran |
| `servers` | the processes under attack |
| `monitoring` | heartbeat, memory and log of the server under attack |
| `holding` | a server that names what held its event loop |
| `verdict` | the limits of a run, and whether they hold |
| `findings` | what went wrong, once for each cause, with a request to replay |
"""
