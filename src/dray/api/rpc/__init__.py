"""The gRPC protocols between a node and its plugins: names and generated messages.

Three parties meet here. A *driver* serves Registration and DRAPlugin (and, if it
watches its hardware, DRAResourceHealth) on unix sockets; the *node* (kubelet, or
dray's agent) calls them; *monitors* ask the node's PodResourcesLister.

The messages are written anew in `protos/`; package names, service names and
field numbers are those of the k8s.io/kubelet module, since they are the wire.
`generated/` is made by tools/protos. The names below are what a plugin lists in
`supported_versions`: not the full gRPC service name, only version and service.
"""

PLUGIN_TYPE = "DRAPlugin"  # PluginInfo.type of a DRA driver

DRA_V1 = "v1.DRAPlugin"
DRA_V1BETA1 = "v1beta1.DRAPlugin"
HEALTH_V1 = "v1.DRAResourceHealth"
HEALTH_V1ALPHA1 = "v1alpha1.DRAResourceHealth"

# What a node knows to speak; a node takes the first of the plugin's list that is in here.
DRA_SERVICES = (DRA_V1, DRA_V1BETA1)
# In the node's order of preference: for health the node chooses, not the plugin.
HEALTH_SERVICES = (HEALTH_V1, HEALTH_V1ALPHA1)

KUBELET_DIR = "/var/lib/kubelet"
CALL_TIMEOUT_SECONDS = 45.0  # how long a node waits for a prepare or unprepare
SOCKET_PATH_MAX = 107  # bytes in sun_path, without the closing zero
