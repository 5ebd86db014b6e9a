"""The roles that every cluster starts with, as data.

The rights are those of Kubernetes v1.37, so that a manifest which binds `view` or
a driver which relies on `system:discovery` means here what it means there. Of the
controllers' roles, those are here whose work dray's controllers do.

A role is a line with its name, followed by its rules:

    - verbs groups: resources [= names]
    - verbs url: paths

Verbs and groups are joined by commas; `core` is the group without a name, `read`
is get, list and watch, `write` is create, delete, deletecollection, patch and
update, `all` is both. A deeper indented line continues the one above.
`rbac_objects` turns this into objects.
"""

CLUSTER_ROLES = """
cluster-admin
  - * *: *
  - * url: *
system:aggregate-to-admin
  - create authorization.k8s.io: localsubjectaccessreviews
  - all rbac.authorization.k8s.io: rolebindings roles
system:aggregate-to-edit
  - read core: pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy
  - impersonate core: serviceaccounts
  - write core: pods pods/attach pods/exec pods/portforward pods/proxy
  - create core: pods/eviction
  - write core: configmaps persistentvolumeclaims replicationcontrollers replicationcontrollers/scale
      secrets serviceaccounts services services/proxy
  - create core: serviceaccounts/token
  - write core,events.k8s.io: events
  - write apps: daemonsets deployments deployments/rollback deployments/scale replicasets replicasets/scale
      statefulsets statefulsets/scale
  - write autoscaling: horizontalpodautoscalers
  - write batch: cronjobs jobs
  - write extensions: daemonsets deployments deployments/rollback deployments/scale ingresses
      networkpolicies replicasets replicasets/scale replicationcontrollers/scale
  - write policy: poddisruptionbudgets
  - write networking.k8s.io: ingresses networkpolicies
  - all coordination.k8s.io: leases
  - write resource.k8s.io: resourceclaims resourceclaimtemplates
  - write scheduling.k8s.io: podgroups workloads
system:aggregate-to-view
  - read core: configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods
      replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status
  - read core: bindings limitranges namespaces/status pods/log pods/status replicationcontrollers/status
      resourcequotas resourcequotas/status
  - read core: namespaces
  - read core,events.k8s.io: events
  - read discovery.k8s.io: endpointslices
  - read apps: controllerrevisions daemonsets daemonsets/status deployments deployments/scale
      deployments/status replicasets replicasets/scale replicasets/status statefulsets statefulsets/scale
      statefulsets/status
  - read autoscaling: horizontalpodautoscalers horizontalpodautoscalers/status
  - read batch: cronjobs cronjobs/status jobs jobs/status
  - read extensions: daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses
      ingresses/status networkpolicies replicasets replicasets/scale replicasets/status
      replicationcontrollers/scale
  - read policy: poddisruptionbudgets poddisruptionbudgets/status
  - read networking.k8s.io: ingresses ingresses/status networkpolicies
  - read resource.k8s.io: resourceclaims resourceclaims/status resourceclaimtemplates
  - read scheduling.k8s.io: podgroups podgroups/status workloads
system:auth-delegator
  - create authentication.k8s.io: tokenreviews
  - create authorization.k8s.io: subjectaccessreviews
system:basic-user
  - create authorization.k8s.io: selfsubjectaccessreviews selfsubjectrulesreviews
  - create authentication.k8s.io: selfsubjectreviews
system:certificates.k8s.io:certificatesigningrequests:nodeclient
  - create certificates.k8s.io: certificatesigningrequests/nodeclient
system:certificates.k8s.io:certificatesigningrequests:selfnodeclient
  - create certificates.k8s.io: certificatesigningrequests/selfnodeclient
system:certificates.k8s.io:kube-apiserver-client-approver
  - approve certificates.k8s.io: signers = kubernetes.io/kube-apiserver-client
system:certificates.k8s.io:kube-apiserver-client-kubelet-approver
  - approve certificates.k8s.io: signers = kubernetes.io/kube-apiserver-client-kubelet
system:certificates.k8s.io:kubelet-serving-approver
  - approve certificates.k8s.io: signers = kubernetes.io/kubelet-serving
system:certificates.k8s.io:legacy-unknown-approver
  - approve certificates.k8s.io: signers = kubernetes.io/legacy-unknown
system:cluster-trust-bundle-discovery
  - read certificates.k8s.io: clustertrustbundles
system:discovery
  - get url: /api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/
system:heapster
  - read core: events namespaces nodes pods
  - read extensions: deployments
system:kube-aggregator
  - read core: endpoints services
system:kube-controller-manager
  - create,patch,update core,events.k8s.io: events
  - create coordination.k8s.io: leases
  - get,update coordination.k8s.io: leases = kube-controller-manager
  - create core: secrets serviceaccounts
  - delete core: secrets
  - get core: configmaps namespaces secrets serviceaccounts
  - update core: secrets serviceaccounts
  - create authentication.k8s.io: tokenreviews
  - create authorization.k8s.io: subjectaccessreviews
  - list,watch *: *
  - create core: serviceaccounts/token
system:kube-dns
  - list,watch core: endpoints services
system:kube-scheduler
  - create,patch,update core,events.k8s.io: events
  - create coordination.k8s.io: leases
  - read,update coordination.k8s.io: leases = kube-scheduler
  - all coordination.k8s.io: leasecandidates
  - read core: nodes
  - read,delete core: pods
  - create core: bindings pods/binding
  - patch,update core: pods/status
  - read core: replicationcontrollers services
  - read apps,extensions: replicasets
  - read apps: statefulsets
  - read policy: poddisruptionbudgets
  - read core: persistentvolumeclaims persistentvolumes
  - create authentication.k8s.io: tokenreviews
  - create authorization.k8s.io: subjectaccessreviews
  - read storage.k8s.io: csinodes
  - read storage.k8s.io: volumeattachments
  - read core: namespaces
  - read storage.k8s.io: csidrivers
  - read storage.k8s.io: csistoragecapacities
  - read resource.k8s.io: deviceclasses
  - read,patch,update resource.k8s.io: resourceclaims
  - read,patch,update resource.k8s.io: resourceclaims/status
  - update core: pods/finalizers
  - read resource.k8s.io: resourceslices
  - create,delete resource.k8s.io: resourceclaims
  - read resource.k8s.io: devicetaintrules
  - patch,update resource.k8s.io: resourceclaims/binding
  - read scheduling.k8s.io: podgroups
  - patch,update scheduling.k8s.io: podgroups/status
system:kubelet-api-admin
  - read core: nodes
  - proxy core: nodes
  - * core: nodes/log nodes/metrics nodes/proxy nodes/stats
  - * core: nodes/configz nodes/healthz nodes/pods
system:monitoring
  - get url: /flagz /healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/* /statusz
  - get core: nodes/metrics
system:node
  - create authentication.k8s.io: tokenreviews
  - create authorization.k8s.io: localsubjectaccessreviews subjectaccessreviews
  - read core: services
  - read,create core: nodes
  - patch,update core: nodes/status
  - patch,update core: nodes
  - create,patch,update core,events.k8s.io: events
  - read core: pods
  - create,delete core: pods
  - patch,update core: pods/status
  - create core: pods/eviction
  - read core: configmaps secrets
  - get core: persistentvolumeclaims persistentvolumes
  - get core: endpoints
  - read,create certificates.k8s.io: certificatesigningrequests
  - create,delete,get,patch,update coordination.k8s.io: leases
  - get storage.k8s.io: volumeattachments
  - create core: serviceaccounts/token
  - get,patch,update core: persistentvolumeclaims/status
  - read storage.k8s.io: csidrivers
  - create,delete,get,patch,update storage.k8s.io: csinodes
  - read node.k8s.io: runtimeclasses
  - get resource.k8s.io: resourceclaims
  - deletecollection resource.k8s.io: resourceslices
  - read certificates.k8s.io: clustertrustbundles
  - get core: serviceaccounts
  - read,create certificates.k8s.io: podcertificaterequests
system:node-bootstrapper
  - read,create certificates.k8s.io: certificatesigningrequests
system:node-problem-detector
  - get core: nodes
  - patch core: nodes/status
  - create,patch,update core,events.k8s.io: events
system:node-proxier
  - list,watch core: endpoints services
  - read core: nodes
  - create,patch,update core,events.k8s.io: events
  - list,watch networking.k8s.io: servicecidrs
  - list,watch discovery.k8s.io: endpointslices
system:persistent-volume-provisioner
  - read,create,delete core: persistentvolumes
  - read,update core: persistentvolumeclaims
  - read storage.k8s.io: storageclasses
  - watch core: events
  - create,patch,update core,events.k8s.io: events
system:public-info-viewer
  - get url: /healthz /livez /readyz /version /version/
system:service-account-issuer-discovery
  - get url: /.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks
      /openid/v1/jwks/
system:volume-scheduler
  - read,patch,update core: persistentvolumes
  - read storage.k8s.io: storageclasses
  - read,patch,update core: persistentvolumeclaims
"""

CONTROLLER_ROLES = """
system:controller:clusterrole-aggregation-controller
  - read,escalate,patch,update rbac.authorization.k8s.io: clusterroles
system:controller:daemon-set-controller
  - read apps,extensions: daemonsets
  - update apps,extensions: daemonsets/status
  - update apps,extensions: daemonsets/finalizers
  - list,watch core: nodes
  - create,delete,list,patch,watch core: pods
  - create core: pods/binding
  - read,create,delete,patch,update apps: controllerrevisions
  - create,patch,update core,events.k8s.io: events
system:controller:deployment-controller
  - read,update apps,extensions: deployments
  - update apps,extensions: deployments/status
  - update apps,extensions: deployments/finalizers
  - read,create,delete,patch,update apps,extensions: replicasets
  - read,update core: pods
  - create,patch,update core,events.k8s.io: events
system:controller:device-taint-eviction-controller
  - read,delete core: pods
  - patch,update core: pods/status
  - read resource.k8s.io: resourceclaims
  - read resource.k8s.io: resourceslices
  - read resource.k8s.io: deviceclasses
  - create,patch,update core,events.k8s.io: events
  - patch,update resource.k8s.io: devicetaintrules/status
  - read resource.k8s.io: devicetaintrules
system:controller:disruption-controller
  - read apps,extensions: deployments
  - read apps,extensions: replicasets
  - read core: replicationcontrollers
  - read policy: poddisruptionbudgets
  - read apps: statefulsets
  - update policy: poddisruptionbudgets/status
  - patch,update core: pods/status
  - get *: */scale
  - create,patch,update core,events.k8s.io: events
system:controller:generic-garbage-collector
  - read,delete,patch,update *: *
  - create,patch,update core,events.k8s.io: events
system:controller:horizontal-pod-autoscaler
  - read autoscaling: horizontalpodautoscalers
  - update autoscaling: horizontalpodautoscalers/status
  - get,update *: */scale
  - list,watch core: pods
  - list,watch metrics.k8s.io: pods
  - read custom.metrics.k8s.io: *
  - read external.metrics.k8s.io: *
  - create,patch,update core,events.k8s.io: events
system:controller:job-controller
  - read,patch,update batch: jobs
  - update batch: jobs/status
  - update batch: jobs/finalizers
  - create,delete,list,patch,watch core: pods
  - create,patch,update core,events.k8s.io: events
system:controller:namespace-controller
  - read,delete core: namespaces
  - update core: namespaces/finalize namespaces/status
  - read,delete,deletecollection *: *
system:controller:node-controller
  - read,delete,patch,update core: nodes
  - patch,update core: nodes/status
  - patch,update core: pods/status
  - read,delete core: pods
  - read coordination.k8s.io: leases
  - create,patch,update core,events.k8s.io: events
system:controller:pod-garbage-collector
  - delete,list,watch core: pods
  - read core: nodes
  - patch core: pods/status
system:controller:podgroup-protection-controller
  - read,update scheduling.k8s.io: podgroups
  - read core: pods
system:controller:replicaset-controller
  - read,update apps,extensions: replicasets
  - update apps,extensions: replicasets/status
  - update apps,extensions: replicasets/finalizers
  - create,delete,list,patch,watch core: pods
  - create,patch,update core,events.k8s.io: events
system:controller:resource-claim-controller
  - read core: pods
  - update core: pods/finalizers
  - read,create,delete resource.k8s.io: resourceclaims
  - patch,update resource.k8s.io: resourceclaims resourceclaims/status
  - patch,update core: pods/status
  - create,patch,update core,events.k8s.io: events
  - patch,update resource.k8s.io: resourceclaims/binding
system:controller:resourcepoolstatusrequest-controller
  - read,delete resource.k8s.io: resourcepoolstatusrequests
  - patch,update resource.k8s.io: resourcepoolstatusrequests/status
  - read resource.k8s.io: resourceslices
  - read resource.k8s.io: resourceclaims
  - read resource.k8s.io: devicetaintrules
  - create,patch,update core,events.k8s.io: events
system:controller:resourcequota-controller
  - list,watch *: *
  - update core: resourcequotas/status
  - create,patch,update core,events.k8s.io: events
system:controller:root-ca-cert-publisher
  - create,update core: configmaps
  - create,patch,update core,events.k8s.io: events
system:controller:service-account-controller
  - create core: serviceaccounts
  - create,patch,update core,events.k8s.io: events
system:controller:ttl-after-finished-controller
  - read,delete batch: jobs
  - create,patch,update core,events.k8s.io: events
"""

# Rights of dray's own parts, beyond what Kubernetes has.
DRAY_ROLES = """
dray:driver
  - all resource.k8s.io: resourceslices
  - read resource.k8s.io: resourceclaims deviceclasses
  - patch,update resource.k8s.io: resourceclaims/status
  - get core: nodes
  - create,patch,update core,events.k8s.io: events
dray:user
  - all core: pods configmaps secrets
  - get core: pods/log pods/status
  - all batch: jobs
  - create,get core: pods/attach pods/exec pods/portforward
  - create core: pods/eviction
  - read core,events.k8s.io: events
  - read core: limitranges resourcequotas serviceaccounts
  - all resource.k8s.io: resourceclaims resourceclaimtemplates
  - get resource.k8s.io: resourceclaims/status
dray:user-reader
  - read core: nodes
  - read resource.k8s.io: deviceclasses resourceslices devicetaintrules
  - read scheduling.k8s.io: priorityclasses
  - get,list core: configmaps = dray-usage dray-queue dray-history
  - post url: /dray/v1/login /dray/v1/dashboard /dray/v1/dashboard/session
dray:usage-record
  - create core: configmaps
  - get core: configmaps = dray-user-limits
  - get,patch,update core: configmaps = dray-usage dray-queue dray-history
dray:leader-election
  - read,create,patch,update coordination.k8s.io: leases
"""

KUBE_SYSTEM_ROLES = """
extension-apiserver-authentication-reader
  - read core: configmaps = extension-apiserver-authentication
system::leader-locking-kube-controller-manager
  - read,create,update coordination.k8s.io: leases
  - read,create,update coordination.k8s.io: leasecandidates
system::leader-locking-kube-scheduler
  - read,create,update coordination.k8s.io: leases
  - read,create,update coordination.k8s.io: leasecandidates
"""
