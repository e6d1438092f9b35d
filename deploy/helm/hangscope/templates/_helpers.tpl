{{- define "hangscope.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "hangscope.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "hangscope.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "hangscope.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object. Call with (list $ COMPONENT). */}}
{{- define "hangscope.labels" -}}
{{- $root := index . 0 -}}
{{ include "hangscope.selector" . }}
app.kubernetes.io/part-of: hangscope
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "hangscope.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "hangscope.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "hangscope.image" -}}
{{- printf "%s:%s" (required "image.repository is empty: build the image with deploy/Containerfile and name it" .Values.image.repository) (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "hangscope.tokens" -}}
{{- default (printf "%s-tokens" (include "hangscope.fullname" .)) .Values.tokens.existingSecret -}}
{{- end -}}

{{- define "hangscope.snapshotterUrl" -}}
{{- $scheme := ternary "https" "http" (not (empty .Values.snapshotter.webConfigSecret)) -}}
{{- default (printf "%s://%s-snapshotter.%s.svc:11029" $scheme (include "hangscope.fullname" .) .Release.Namespace) .Values.snapshotter.externalUrl | trimSuffix "/" -}}
{{- end -}}

{{/* Whether several snapshotters may share the work: "true" or empty. */}}
{{- define "hangscope.shared" -}}
{{- $storage := default dict .Values.snapshotter.config.storage -}}
{{- if or .Values.snapshotter.existingConfigSecret (and (hasPrefix "postgres" (default "" $storage.index)) $storage.bundles) -}}true{{- end -}}
{{- end -}}

{{/* The snapshotter's file: what the chart knows, overridden by snapshotter.config. */}}
{{- define "hangscope.snapshotterConfig" -}}
{{- $agents := dict -}}
{{- if .Values.agent.enabled -}}
{{- $agents = dict "token_file" "/etc/hangscope/tokens/agent" "address_label" "hangscope_agent" -}}
{{- with .Values.snapshotter.agentTlsSecret -}}
{{- $_ := set $agents "tls" true -}}
{{- $_ := set $agents "ca_file" "/etc/hangscope/agent-tls/ca.crt" -}}
{{- $_ := set $agents "server_name" "hangscope-agent" -}}
{{- end -}}
{{- end -}}
{{- $base := dict "prometheus" (dict "url" .Values.snapshotter.prometheusUrl) "agents" $agents -}}
{{- mergeOverwrite $base (deepCopy .Values.snapshotter.config) | toYaml -}}
{{- end -}}

{{/* A probe that works under every web configuration: with passwords or certificates only the port is tried. */}}
{{- define "hangscope.probe" -}}
{{- if index . 0 -}}
tcpSocket:
  port: {{ index . 1 }}
{{- else -}}
httpGet:
  path: {{ index . 2 }}
  port: {{ index . 1 }}
{{- end -}}
{{- end -}}
