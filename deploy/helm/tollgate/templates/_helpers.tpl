{{/* The name of the release's objects: the release, and the chart unless the release is named after it. */}}
{{- define "tollgate.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels by which pods are selected. They never change. */}}
{{- define "tollgate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tollgate.metadata" -}}
name: {{ include "tollgate.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "tollgate.labels" . | nindent 2 }}
{{- end -}}

{{- define "tollgate.clusterSecret" -}}
{{- .Values.clusterSecret.existing | default (printf "%s-cluster" (include "tollgate.name" .)) -}}
{{- end -}}

{{- define "tollgate.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
All settings, by section and name: those of the values, and those that follow from other values. Setting the latter
directly would contradict the objects of the chart, so it is an error.
*/}}
{{- define "tollgate.settings" -}}
{{- $own := dict
    "rules" (dict "path" "/etc/tollgate/rules")
    "http" (dict "listen" (printf "%s:8080" .Values.listenAddress))
    "metrics" (dict "listen" (printf "%s:9090" .Values.listenAddress))
    "grpc" (include "tollgate.grpcSettings" . | fromJson) -}}
{{- if eq .Values.store.kind "redis" -}}
{{- $_ := set $own "store" (dict "kind" "redis" "redis" (include "tollgate.redisSettings" . | fromJson)) -}}
{{- else -}}
{{- $_ := set $own "cluster" (include "tollgate.clusterSettings" . | fromJson) -}}
{{- end -}}
{{- $reserved := list "rules.path" "http.listen" "metrics.listen"
    "grpc.listen" "grpc.tls_cert" "grpc.tls_key" "grpc.tls_client_ca"
    "cluster.listen" "cluster.advertise" "cluster.seed" "cluster.secret_file" "cluster.cert" "cluster.key" "cluster.ca"
    "store.kind" "store.redis.urls" "store.redis.mode" "store.redis.sentinel_service" "store.redis.username"
    "store.redis.password_file" "store.redis.sentinel_password_file" "store.redis.ca" "store.redis.cert"
    "store.redis.key" "store.redis.prefix" -}}
{{- range $reserved -}}
{{- $at := $.Values.settings -}}
{{- range splitList "." . -}}
{{- if kindIs "map" $at -}}
{{- $at = get $at . -}}
{{- end -}}
{{- end -}}
{{- if ne (toString $at) "" -}}
{{- $instead := "see listenAddress, store, clusterSecret, peerCertificateSecret and serverTls" -}}
{{- fail (printf "settings.%s is set by the chart: remove it; %s" . $instead) -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.settings) $own | toJson -}}
{{- end -}}

{{- define "tollgate.grpcSettings" -}}
{{- $grpc := dict "listen" (printf "%s:8081" .Values.listenAddress) -}}
{{- if .Values.serverTls.secret -}}
{{- $_ := set $grpc "tls_cert" "/etc/tollgate/tls/tls.crt" -}}
{{- $_ := set $grpc "tls_key" "/etc/tollgate/tls/tls.key" -}}
{{- if .Values.serverTls.clientCertificates -}}
{{- $_ := set $grpc "tls_client_ca" "/etc/tollgate/tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- $grpc | toJson -}}
{{- end -}}

{{- define "tollgate.clusterSettings" -}}
{{- $cluster := dict "listen" (printf "%s:8082" .Values.listenAddress) "advertise" "$(POD_IP)"
    "seed" (printf "%s-peers:8082" (include "tollgate.name" .)) -}}
{{- if .Values.peerCertificateSecret -}}
{{- range $name, $file := dict "cert" "tls.crt" "key" "tls.key" "ca" "ca.crt" -}}
{{- $_ := set $cluster $name (printf "/etc/tollgate/cluster/%s" $file) -}}
{{- end -}}
{{- else -}}
{{- $_ := set $cluster "secret_file" "/etc/tollgate/cluster/secret" -}}
{{- end -}}
{{- $cluster | toJson -}}
{{- end -}}

{{/* Values without content are left to the defaults of the program. */}}
{{- define "tollgate.redisSettings" -}}
{{- $redis := dict "urls" (join "," .Values.store.redis.urls) -}}
{{- with .Values.store.redis -}}
{{- if ne .mode "standalone" -}}
{{- $_ := set $redis "mode" .mode -}}
{{- end -}}
{{- range $setting, $value := dict "sentinel_service" .sentinelService "username" .username "prefix" .prefix -}}
{{- if $value -}}
{{- $_ := set $redis $setting $value -}}
{{- end -}}
{{- end -}}
{{- if .passwordSecret -}}
{{- $_ := set $redis "password_file" (printf "/etc/tollgate/redis/%s" .passwordKey) -}}
{{- with .sentinelPasswordKey -}}
{{- $_ := set $redis "sentinel_password_file" (printf "/etc/tollgate/redis/%s" .) -}}
{{- end -}}
{{- end -}}
{{- if .tlsSecret -}}
{{- $_ := set $redis "ca" "/etc/tollgate/redis-tls/ca.crt" -}}
{{- if .clientCertificate -}}
{{- $_ := set $redis "cert" "/etc/tollgate/redis-tls/tls.crt" -}}
{{- $_ := set $redis "key" "/etc/tollgate/redis-tls/tls.key" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $redis | toJson -}}
{{- end -}}

{{/* The variables of settings by section and name; a section may be in another one. */}}
{{- define "tollgate.variables" -}}
{{- range $name, $value := .settings }}
{{- $variable := printf "%s%s" $.prefix (upper $name) }}
{{- if kindIs "map" $value }}
{{- include "tollgate.variables" (dict "prefix" (printf "%s__" $variable) "settings" $value) }}
{{- else }}
- name: {{ $variable }}
  value: {{ include "tollgate.text" $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A value of a setting as text. Large numbers are floats in Go, which would print them with an exponent. */}}
{{- define "tollgate.text" -}}
{{- if kindIs "slice" . -}}
{{- join "," . -}}
{{- else if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}
