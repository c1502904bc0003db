package chart_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"tangram.dev/tests/internal/apiserver"
)

func TestLint(t *testing.T) {
	_, err := program(t.Context(), "", "helm", "lint", "--strict", chart)
	require.NoError(t, err)
}

// Sets of values that a user may choose; each must render to valid manifests.
var valueSets = map[string][]string{
	"defaults":        nil,
	"two namespaces":  {"--set", "watchNamespaces={team-a,team-b}", "--set", "rbac.aggregateToDefaultRoles=false"},
	"no metrics":      {"--set", "metrics.enabled=false"},
	"images":          {"--set", "images.tag=dev,images.operator.pullPolicy=Never,images.agent.name=registry.example.com:5000/tangram/agent"},
	"service monitor": {"--set", "metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.labels.team=a"},
	"pod monitor":     {"--set", "metrics.podMonitor.enabled=true,metrics.podMonitor.labels.team=a,watchNamespaces={team-a}"},
	"alerts":          {"--set", "metrics.rules.enabled=true,metrics.rules.labels.team=a"},
	"custom metrics":  {"--set", "customMetrics.enabled=true,customMetrics.port=7443,watchNamespaces={team-a}"},
	"everything": {"--set", "customMetrics.enabled=true", "--set", "replicas=3,logLevel=debug,priorityClassName=high,serviceAccount.name=robot,nodeSelector.disk=fast",
		"--set", "imagePullSecrets[0].name=secret,tolerations[0].key=gpu,tolerations[0].operator=Exists,podAnnotations.a=b",
		"--set", "serviceAccount.annotations.c=d,resources.limits.cpu=1,affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1",
		"--set", "affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey=zone"},
}

func TestRenderedObjectsMatchSchemas(t *testing.T) {
	schemas := t.TempDir()
	writeSchemas(t, schemas)
	kubeconform := func(text string) (string, error) {
		return program(t.Context(), text, "kubeconform", "-strict", "-summary", "-output=text", "-skip=ServiceMonitor,PodMonitor,PrometheusRule",
			"-schema-location="+filepath.Join(schemas, schemaFile), "-")
	}
	for name, args := range valueSets {
		t.Run(name, func(t *testing.T) {
			text, err := render(t.Context(), append(args, "--include-crds")...)
			require.NoError(t, err)
			out, err := kubeconform(text)
			require.NoError(t, err)
			require.NotContains(t, out, "Valid: 0,")
		})
	}
	t.Run("examples", func(t *testing.T) {
		for name, example := range examples(t) {
			_, err := kubeconform(example)
			require.NoError(t, err, name)
		}
	})
	t.Run("misspelt fields are found", func(t *testing.T) {
		text, err := render(t.Context())
		require.NoError(t, err)
		_, err = kubeconform(strings.Replace(text, "runAsNonRoot:", "runAsNoRoot:", 1))
		require.ErrorContains(t, err, "runAsNoRoot")
		_, err = kubeconform(strings.Replace(examples(t)["cpu-demo/moedeployment.yaml"], "  replicas:", "  replica:", 1))
		require.ErrorContains(t, err, "'replica'")
	})
}

func TestInvalidValuesAreRejected(t *testing.T) {
	tests := map[string]struct {
		set   string
		words []string
	}{
		"unknown value":       {"image.tag=dev", []string{"additional properties 'image' not allowed"}},
		"unknown image":       {"images.router.name=r", []string{"/images", "additional properties 'router' not allowed"}},
		"no operator":         {"replicas=0", []string{"/replicas", "minimum: got 0, want 1"}},
		"half an operator":    {"replicas=1.5", []string{"/replicas", "want integer"}},
		"log level":           {"logLevel=loud", []string{"/logLevel", "'debug', 'info', 'warn', 'error'"}},
		"tag in the name":     {"images.agent.name=tangram.dev/agent:dev", []string{"/images/agent/name", "does not match pattern"}},
		"empty name":          {"images.engine.name=", []string{"/images/engine/name", "does not match pattern"}},
		"no name":             {"images.gateway.name=null", []string{"/images/gateway", "missing property 'name'"}},
		"bad tag":             {"images.tag=a/b", []string{"/images/tag", "does not match pattern"}},
		"pull policy":         {"images.operator.pullPolicy=Sometimes", []string{"/images/operator/pullPolicy", "'Always', 'IfNotPresent', 'Never'"}},
		"policy without use":  {"images.agent.pullPolicy=Never", []string{"/images/agent", "additional properties 'pullPolicy' not allowed"}},
		"namespace":           {"watchNamespaces={Team_A}", []string{"/watchNamespaces/0", "does not match pattern"}},
		"privileged port":     {"metrics.port=80", []string{"/metrics/port", "minimum: got 80, want 1,024"}},
		"two on one port":     {"customMetrics.enabled=true,customMetrics.port=8080", []string{"customMetrics.port and metrics.port are both 8080"}},
		"port of the probes":  {"metrics.port=8081", []string{"/metrics/port", "not"}},
		"interval":            {"metrics.serviceMonitor.interval=soon", []string{"/metrics/serviceMonitor/interval", "does not match pattern"}},
		"nothing to scrape":   {"metrics.enabled=false,metrics.serviceMonitor.enabled=true", []string{"metrics.serviceMonitor.enabled needs metrics.enabled"}},
		"validity":            {"certificates.validity=soon", []string{"/certificates/validity", "does not match pattern"}},
		"relative folder":     {"nodeMemory.folder=run/node", []string{"/nodeMemory/folder", "does not match pattern"}},
		"folder upwards":      {"nodeMemory.folder=/run/../etc", []string{"/nodeMemory/folder", "does not match pattern"}},
		"the whole node":      {"nodeMemory.folder=/", []string{"/nodeMemory/folder", "does not match pattern"}},
		"resources misspelt":  {"resources.limit.cpu=1", []string{"/resources", "additional properties 'limit' not allowed"}},
		"selector of numbers": {"nodeSelector.a=1", []string{"/nodeSelector/a", "want string"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := render(t.Context(), "--set", test.set)
			for _, word := range test.words {
				require.ErrorContains(t, err, word)
			}
		})
	}
}

func TestOldKubernetesIsRejected(t *testing.T) {
	_, err := render(t.Context(), "--kube-version", "v1.29.0")
	require.ErrorContains(t, err, "chart requires kubeVersion: >= 1.35.0-0")
}

// Agents on GPUs may have a separate image.
func TestOperatorGetsGPUAgentImage(t *testing.T) {
	var operator appsv1.Deployment
	rendered(t, "--set", "images.tag=dev,images.agentGPU.name=registry.example.com/agent-gpu").find(t, "Deployment", "tangram-operator", &operator)
	require.Contains(t, operator.Spec.Template.Spec.Containers[0].Args, "--agent-gpu-image=registry.example.com/agent-gpu:dev")
	rendered(t).find(t, "Deployment", "tangram-operator", &operator)
	for _, arg := range operator.Spec.Template.Spec.Containers[0].Args {
		require.NotContains(t, arg, "agent-gpu")
	}
	_, err := render(t.Context(), "--set", "images.agentGPU.tag=dev")
	require.ErrorContains(t, err, "/images/agentGPU")
}

func TestOperatorGetsValuesAsFlags(t *testing.T) {
	var operator appsv1.Deployment
	rendered(t, "--set", "images.tag=dev,images.engine.tag=v2,watchNamespaces={team-a,team-b},metrics.port=9090,logLevel=warn,replicas=2,certificates.loadTime=1m,nodeMemory.folder=/var/tangram.d").
		find(t, "Deployment", "tangram-operator", &operator)
	container := operator.Spec.Template.Spec.Containers[0]
	require.Equal(t, int32(2), *operator.Spec.Replicas)
	require.Equal(t, "tangram.dev/operator:dev", container.Image)
	require.Equal(t, []string{"/bin/tangram-operator"}, container.Command)
	require.Equal(t, []string{
		"--agent-image=tangram.dev/agent:dev", "--engine-image=tangram.dev/engine:v2", "--vllm-image=tangram.dev/vllm:dev", "--operator-image=tangram.dev/operator:dev", "--gateway-image=tangram.dev/gateway:dev",
		"--namespaces=team-a,team-b", "--metrics-bind-address=:9090", "--health-probe-bind-address=:8081",
		"--leader-elect", "--own-namespace=tangram-system", "--node-folder=/var/tangram.d", "--log-level=warn",
		"--authority-validity=8760h", "--certificate-validity=720h", "--certificate-load-time=1m",
	}, container.Args)
	require.Equal(t, "/readyz", container.ReadinessProbe.HTTPGet.Path)
	require.Equal(t, "/healthz", container.LivenessProbe.HTTPGet.Path)
	require.Equal(t, []corev1.ContainerPort{{Name: "health", ContainerPort: 8081}, {Name: "metrics", ContainerPort: 9090}}, container.Ports)
}

// The policy opens exactly the ports that the operator listens on.
func TestNetworkPolicyOpensOperatorPorts(t *testing.T) {
	for _, args := range valueSets {
		objects := rendered(t, args...)
		var operator appsv1.Deployment
		var policy networkingv1.NetworkPolicy
		objects.find(t, "Deployment", "tangram-operator", &operator)
		objects.find(t, "NetworkPolicy", "tangram-operator", &policy)
		require.Equal(t, operator.Spec.Selector.MatchLabels, policy.Spec.PodSelector.MatchLabels)
		container := operator.Spec.Template.Spec.Containers[0]
		var listens, declared, opened []string
		for _, arg := range container.Args {
			if _, address, is := strings.Cut(arg, "-bind-address=:"); is {
				listens = append(listens, address)
			}
		}
		for _, port := range container.Ports {
			declared = append(declared, strconv.Itoa(int(port.ContainerPort)))
		}
		for _, rule := range policy.Spec.Ingress {
			for _, port := range rule.Ports {
				opened = append(opened, port.Port.String())
			}
		}
		require.NotEmpty(t, listens)
		require.ElementsMatch(t, listens, declared)
		require.ElementsMatch(t, listens, opened)
	}
	require.Zero(t, rendered(t, "--set", "networkPolicy.enabled=false").kinds()["NetworkPolicy"])
}

func TestMetricsAreOptional(t *testing.T) {
	kinds := rendered(t).kinds()
	require.Equal(t, 1, kinds["Service"])
	require.Zero(t, kinds["ServiceMonitor"])

	without := rendered(t, "--set", "metrics.enabled=false")
	require.Zero(t, without.kinds()["Service"])
	var operator appsv1.Deployment
	without.find(t, "Deployment", "tangram-operator", &operator)
	require.Contains(t, operator.Spec.Template.Spec.Containers[0].Args, "--metrics-bind-address=0")

	// The selectors of the Service and the ServiceMonitor match the labels of the Deployment and the Service.
	with := rendered(t, "--set", "metrics.serviceMonitor.enabled=true")
	var service corev1.Service
	with.find(t, "Service", "tangram-operator-metrics", &service)
	with.find(t, "Deployment", "tangram-operator", &operator)
	for key, value := range service.Spec.Selector {
		require.Equal(t, value, operator.Spec.Template.Labels[key])
	}
	monitor := object{}
	with.find(t, "ServiceMonitor", "tangram-operator", &monitor)
	for key, value := range monitor["spec"].(object)["selector"].(object)["matchLabels"].(object) {
		require.Equal(t, value, service.Labels[key])
	}
}

// The API server finds the operator by the APIService and the Service. The operator's flags name both and its Secret,
// the only one that it may write.
func TestCustomMetricsAreOptional(t *testing.T) {
	without := rendered(t)
	require.Zero(t, without.kinds()["APIService"])
	require.Zero(t, without.kinds()["Secret"])

	with := rendered(t, "--set", "customMetrics.enabled=true,customMetrics.port=7443")
	api := object{}
	with.find(t, "APIService", "v1beta2.custom.metrics.k8s.io", &api)
	spec := api["spec"].(object)
	require.NotContains(t, spec, "caBundle", "it is the operator's")
	require.NotContains(t, spec, "insecureSkipTLSVerify")
	require.Equal(t, object{"name": "tangram-operator-custom-metrics", "namespace": "tangram-system", "port": 443.}, spec["service"])
	var service corev1.Service
	with.find(t, "Service", "tangram-operator-custom-metrics", &service)
	var operator appsv1.Deployment
	with.find(t, "Deployment", "tangram-operator", &operator)
	for key, value := range service.Spec.Selector {
		require.Equal(t, value, operator.Spec.Template.Labels[key])
	}
	container := operator.Spec.Template.Spec.Containers[0]
	require.Contains(t, container.Ports, corev1.ContainerPort{Name: service.Spec.Ports[0].TargetPort.StrVal, ContainerPort: 7443})
	for _, arg := range []string{"--custom-metrics-bind-address=:7443", "--custom-metrics-service=tangram-operator-custom-metrics", "--custom-metrics-secret=tangram-operator-custom-metrics"} {
		require.Contains(t, container.Args, arg)
	}
	var secret corev1.Secret
	with.find(t, "Secret", "tangram-operator-custom-metrics", &secret)
	require.Empty(t, secret.Data, "the operator fills it")
	role := &rbacv1.Role{}
	with.find(t, "Role", "tangram-operator-custom-metrics", role)
	require.Equal(t, []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{secret.Name}, Verbs: []string{"get", "update"}}}, role.Rules)

	long, err := program(t.Context(), "", "helm", "template", strings.Repeat("x", 53), chart, "--kube-version", kubeVersion, "--set", "customMetrics.enabled=true")
	require.NoError(t, err)
	require.Contains(t, long, "  name: "+strings.Repeat("x", 48)+"-custom-metrics\n", "a Service's name has 63 letters at most")
	require.Contains(t, long, "  name: "+strings.Repeat("x", 53)+"-o-metrics", "likewise")
}

// The PodMonitor selects pods of ranks and gateways by the operator's labels and port (see
// TestGatewaysAreReplacedOneByOne there).
func TestPodMonitorSelectsWorlds(t *testing.T) {
	require.Zero(t, rendered(t).kinds()["PodMonitor"])
	for watched, want := range map[string]any{"null": object{"any": true}, "{team-a}": object{"matchNames": []any{"team-a"}}, "{team-a,team-b}": object{"matchNames": []any{"team-a", "team-b"}}} {
		monitor := object{}
		rendered(t, "--set", "metrics.podMonitor.enabled=true,watchNamespaces="+watched).find(t, "PodMonitor", "tangram-operator-worlds", &monitor)
		spec := monitor["spec"].(object)
		require.Equal(t, want, spec["namespaceSelector"])
		require.Equal(t, object{"app.kubernetes.io/name": "tangram", "app.kubernetes.io/managed-by": "tangram-operator"}, spec["selector"].(object)["matchLabels"])
		require.Equal(t, "metrics", spec["podMetricsEndpoints"].([]any)[0].(object)["port"])
	}
}

// Alerts exist if enabled, and each describes its cause. (TestMetricNamesAreUniqueAndDocumented checks that their metrics
// are exported.)
func TestAlerts(t *testing.T) {
	require.Zero(t, rendered(t).kinds()["PrometheusRule"])
	rule := object{}
	rendered(t, "--set", "metrics.rules.enabled=true,metrics.rules.certificateDays=7,metrics.rules.labels.release=mine").find(t, "PrometheusRule", "tangram-operator", &rule)
	require.Equal(t, "mine", rule["metadata"].(object)["labels"].(object)["release"])
	alerts := rule["spec"].(object)["groups"].([]any)[0].(object)["rules"].([]any)
	require.Greater(t, len(alerts), 5)
	names := map[any]bool{}
	for _, a := range alerts {
		alert := a.(object)
		require.False(t, names[alert["alert"]], alert["alert"])
		names[alert["alert"]] = true
		require.Contains(t, []any{"warning", "critical"}, alert["labels"].(object)["severity"])
		require.Contains(t, alert["annotations"].(object)["summary"], "{{ $labels.namespace }}")
		require.NotEmpty(t, alert["annotations"].(object)["description"])
		if alert["alert"] == "TangramCertificateEnds" {
			require.Equal(t, "(tangram_operator_certificate_expiration_timestamp_seconds - time()) / 86400 < 7", alert["expr"])
		}
	}
	monitor := object{}
	rendered(t, "--set", "metrics.serviceMonitor.enabled=true").find(t, "ServiceMonitor", "tangram-operator", &monitor)
	require.Equal(t, true, monitor["spec"].(object)["endpoints"].([]any)[0].(object)["honorLabels"], "else Prometheus calls the world's namespace exported_namespace")
}

// A disruption budget protects the operator if another one can take over.
func TestDisruptionBudgetProtectsOperators(t *testing.T) {
	require.Zero(t, rendered(t).kinds()["PodDisruptionBudget"])
	three := rendered(t, "--set", "replicas=3")
	var budget policyv1.PodDisruptionBudget
	three.find(t, "PodDisruptionBudget", "tangram-operator", &budget)
	var operator appsv1.Deployment
	three.find(t, "Deployment", "tangram-operator", &operator)
	require.Equal(t, operator.Spec.Selector, budget.Spec.Selector)
	require.Equal(t, 1, budget.Spec.MaxUnavailable.IntValue())
}

// Two releases of one name in two namespaces do not collide.
func TestReleasesDoNotCollide(t *testing.T) {
	seen := map[string]bool{}
	for _, namespace := range []string{"a", "b"} {
		for _, object := range rendered(t, "--namespace", namespace) {
			key := object.GetKind() + "/" + object.GetNamespace() + "/" + object.GetName()
			require.False(t, seen[key], key)
			seen[key] = true
		}
	}
}

// examples returns the manifests in the folder examples by their paths.
func examples(t *testing.T) map[string]string {
	t.Helper()
	folder := filepath.Join(apiserver.Root(), "examples")
	files, err := filepath.Glob(filepath.Join(folder, "*", "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	texts := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		name, err := filepath.Rel(folder, file)
		require.NoError(t, err)
		texts[name] = string(text)
	}
	return texts
}
