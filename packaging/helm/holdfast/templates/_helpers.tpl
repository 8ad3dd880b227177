{{- define "holdfast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "holdfast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "holdfast.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "holdfast.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* How many nodes there are. Also where what cannot be had is refused. */}}
{{- define "holdfast.count" -}}
{{- if .Values.sentinel.enabled -}}
{{- fail "sentinel.enabled: Holdfast elects leaders by itself, and speaks no protocol of Sentinel; let clients connect to the service of the nodes" -}}
{{- end -}}
{{- if eq .Values.architecture "standalone" -}}
1
{{- else if eq .Values.architecture "replication" -}}
{{- add 1 (int .Values.replica.replicaCount) -}}
{{- else -}}
{{- fail (printf "architecture: %q is neither standalone nor replication" .Values.architecture) -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.image" -}}
{{- $registry := default .Values.image.registry .Values.global.imageRegistry -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- if $registry -}}{{ $registry }}/{{- end -}}
{{ .Values.image.repository }}:{{ $tag }}
{{- end -}}

{{- define "holdfast.pullSecrets" -}}
{{- with concat .Values.global.imagePullSecrets .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "holdfast.secret" -}}
{{- default (include "holdfast.fullname" .) .Values.auth.existingSecret -}}
{{- end -}}

{{- define "holdfast.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "holdfast.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The names by which a node is found wherever it runs. */}}
{{- define "holdfast.headless" -}}
{{ include "holdfast.fullname" . }}-headless.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "holdfast.nodes" -}}
{{- $root := . -}}
{{- $nodes := list -}}
{{- range $index := until (int (include "holdfast.count" .)) -}}
{{- $nodes = append $nodes (printf "%s-%d.%s:%d" (include "holdfast.fullname" $root) $index (include "holdfast.headless" $root) (int $root.Values.containerPorts.redis)) -}}
{{- end -}}
{{- toJson $nodes -}}
{{- end -}}

{{- define "holdfast.password" -}}
{{- if .Values.auth.enabled }}
- name: HOLDFAST_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "holdfast.secret" . }}
      key: {{ .Values.auth.existingSecretPasswordKey }}
{{- end }}
{{- end -}}
