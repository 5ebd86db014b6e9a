{{/* The prefix of all names: the release's name, with the chart's name unless it is in there. */}}
{{- define "dray.fullname" -}}
{{- if contains "dray" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-dray" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of an object; the argument is a list: the root context and the component. */}}
{{- define "dray.labels" -}}
{{- $root := index . 0 -}}
{{ include "dray.selector" . }}
app.kubernetes.io/part-of: dray
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels by which a component's pods are selected: never change these. */}}
{{- define "dray.selector" -}}
app.kubernetes.io/name: {{ include "dray.fullname" (index . 0) }}-{{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end -}}

{{- define "dray.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The part of a pod that all Deployments share; the argument is a list: the root context, the component, its values. */}}
{{- define "dray.pod" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $values := index . 2 -}}
serviceAccountName: {{ include "dray.fullname" $root }}-{{ $component }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 1
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{ include "dray.selector" (list $root $component) | nindent 14 }}
{{- with $values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* How a program logs, as one of its arguments; text is its default. */}}
{{- define "dray.logFormat" -}}
{{- if ne .Values.logFormat "text" -}}
- --log-format={{ .Values.logFormat }}
{{- end -}}
{{- end -}}

{{/* The argument is a list: root context, component, its endpoint. */}}
{{- define "dray.serviceMonitor" -}}
{{- $root := index . 0 -}}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ include "dray.fullname" $root }}-{{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{ include "dray.labels" (list $root (index . 1)) | nindent 4 }}
    {{- with $root.Values.metrics.serviceMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels: {{ include "dray.selector" (list $root (index . 1)) | nindent 6 }}
  endpoints:
    - {{ index . 2 | toJson }}
{{- end -}}

{{/* What a container without any right looks like. */}}
{{- define "dray.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* A service account bound to roles of its own name; the argument is a list: the root context, the component. */}}
{{- define "dray.account" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s" (include "dray.fullname" $root) (index . 1) -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{ include "dray.labels" . | nindent 4 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels: {{ include "dray.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ $root.Release.Namespace }}
{{- end -}}

{{/* A lease, and the right to hold it and no other one. The lease is part of the release: so no right to create leases is
needed, and uninstalling leaves none behind. The argument is a list: root context, component, name of the lease. */}}
{{- define "dray.lease" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s" (include "dray.fullname" $root) (index . 1) -}}
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: {{ index . 2 }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{ include "dray.labels" (list $root (index . 1)) | nindent 4 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{ include "dray.labels" (list $root (index . 1)) | nindent 4 }}
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [{{ index . 2 }}]
    verbs: [get, update, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{ include "dray.labels" (list $root (index . 1)) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ $root.Release.Namespace }}
{{- end -}}

{{/* A budget; the argument is a list: root context, component, its values. */}}
{{- define "dray.budget" -}}
{{- $root := index . 0 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "dray.fullname" $root }}-{{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{ include "dray.labels" (list $root (index . 1)) | nindent 4 }}
spec:
  minAvailable: {{ (index . 2).podDisruptionBudget.minAvailable }}
  selector:
    matchLabels: {{ include "dray.selector" (list $root (index . 1)) | nindent 6 }}
{{- end -}}

{{/* Settings of one driver: the defaults, overlaid with its own. The argument is a list: root context, key. */}}
{{- define "dray.driver" -}}
{{- $own := index (index . 0).Values.drivers (index . 1) | default dict -}}
{{- $merged := mergeOverwrite (deepCopy (index . 0).Values.driverDefaults) (deepCopy $own) -}}
{{- if not $merged.driver }}{{- $_ := set $merged "driver" (index . 1) -}}{{- end -}}
{{ toYaml $merged }}
{{- end -}}
