{{- define "railweave.labels" -}}
app.kubernetes.io/name: railweave-node
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}
{{- define "railweave.selector" -}}
app.kubernetes.io/name: railweave-node
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "railweave.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
