{{/* Name of the objects of this chart: the release name, with "tangram" in it. */}}
{{- define "tangram.name" -}}
{{- $base := ternary .Release.Name (printf "%s-tangram" .Release.Name) (contains "tangram" .Release.Name) -}}
{{- printf "%s-operator" ($base | trunc 54 | trimSuffix "-") -}}
{{- end -}}

{{/* Name of the custom metrics objects. One is a Service, so it has at most 63 characters. */}}
{{- define "tangram.customMetrics" -}}
{{- printf "%s-custom-metrics" (include "tangram.name" . | trunc 48 | trimSuffix "-") -}}
{{- end -}}

{{/* Name of cluster-scoped objects, unique per namespace and release name. */}}
{{- define "tangram.clusterName" -}}
{{- printf "%s.%s" (include "tangram.name" .) .Release.Namespace -}}
{{- end -}}

{{- define "tangram.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "tangram.name" .) -}}
{{- end -}}

{{- define "tangram.selector" -}}
app.kubernetes.io/name: tangram-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tangram.labels" -}}
{{ include "tangram.selector" . }}
app.kubernetes.io/part-of: tangram
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Reference of an image; arguments: root, which. */}}
{{- define "tangram.image" -}}
{{- $image := index .root.Values.images .which -}}
{{- printf "%s:%s" $image.name (coalesce $image.tag .root.Values.images.tag .root.Chart.AppVersion) -}}
{{- end -}}

{{/*
Rules of files/role.yaml, which is generated from the RBAC markers of the operator, by scope;
arguments: root, scope:
  all        rules for all namespaces and for the cluster
  namespaced the same without cluster-scoped kinds
  cluster    only cluster-scoped kinds
  own        rules for leader election in the namespace of the operator
*/}}
{{- define "tangram.rules" -}}
{{- $scope := .scope -}}
{{- $rules := list -}}
{{- range $document := splitList "\n---" (.root.Files.Get "files/role.yaml") -}}
  {{- range $rule := (fromYaml $document).rules -}}
    {{- $kept := list -}}
    {{- range $resource := $rule.resources -}}
      {{- $clusterWide := has $resource (list "nodes" "tokenreviews" "subjectaccessreviews") -}}
      {{- $lease := eq $resource "leases" -}}
      {{- $event := eq $resource "events" -}}
      {{- if or (and (eq $scope "all") (not $lease))
                (and (eq $scope "namespaced") (not (or $clusterWide $lease)))
                (and (eq $scope "cluster") $clusterWide)
                (and (eq $scope "own") (or $lease $event)) -}}
        {{- $kept = append $kept $resource -}}
      {{- end -}}
    {{- end -}}
    {{- if $kept -}}
      {{- $rules = append $rules (merge (dict "resources" $kept) $rule) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if not $rules }}{{ fail (printf "files/role.yaml has no rule of scope %s: the chart is damaged, run api/generate.sh" $scope) }}{{ end -}}
{{- toYaml $rules -}}
{{- end -}}
