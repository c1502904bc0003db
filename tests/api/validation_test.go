package api_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"tangram.dev/api/v1alpha2"
)

// fields are differences from the smallest valid object, by path.
type fields map[string]any

// refused requires the reply Invalid with all of the words.
func refused(t *testing.T, err error, words ...string) {
	t.Helper()
	require.Error(t, err, "the server accepted it; it should have said %q", words)
	require.True(t, apierrors.IsInvalid(err), "not refused as Invalid: %v", err)
	for _, word := range words {
		require.ErrorContains(t, err, word)
	}
}

// hybrid returns a spec with these ranges of layers.
func hybrid(ranges ...any) fields {
	return fields{"spec.parallelism.layers": ranges}
}

// layers is a range from first to last (negative: to the model's last layer) with expert groups of this many ranks.
func layers(first, last int64, group any) map[string]any {
	out := map[string]any{"firstLayer": first, "expertGroup": group}
	if last >= 0 {
		out["lastLayer"] = last
	}
	return out
}

// scaled sets the bounds of an autoscaler.
func scaled(least, most int64, slo map[string]any) fields {
	return fields{"spec.minReplicas": least, "spec.maxReplicas": most, "spec.autoscaling": map[string]any{"slo": slo}}
}

func merged(all ...fields) fields {
	out := fields{}
	for _, f := range all {
		maps.Copy(out, f)
	}
	return out
}

func TestCreateIsRejected(t *testing.T) {
	claim := func(path string) fields {
		return fields{"spec.model.source.persistentVolumeClaim": map[string]any{"claimName": "c", "path": path}}
	}
	tests := map[string]struct {
		fields fields
		words  []string
	}{
		"replicas 0":             {fields{"spec.replicas": int64(0)}, []string{"spec.replicas", "To stop serving, delete the MoEDeployment"}},
		"replicas below 0":       {fields{"spec.replicas": int64(-1)}, []string{"spec.replicas", "greater than or equal to 1"}},
		"too many replicas":      {fields{"spec.replicas": int64(8193)}, []string{"spec.replicas", "less than or equal to 8192"}},
		"no rank in a pod":       {fields{"spec.ranksPerPod": int64(0)}, []string{"spec.ranksPerPod", "greater than or equal to 1"}},
		"too many ranks in pod":  {fields{"spec.ranksPerPod": int64(65)}, []string{"spec.ranksPerPod", "less than or equal to 64"}},
		"too many ranks":         {fields{"spec.replicas": int64(1025), "spec.ranksPerPod": int64(8)}, []string{"spec.replicas", "at most 8192 ranks, including standby"}},
		"too many with standby":  {fields{"spec.replicas": int64(8192), "spec.standbyReplicas": int64(1)}, []string{"spec.replicas", "Lower replicas, standbyReplicas or ranksPerPod"}},
		"standby of none":        {fields{"spec.standbyReplicas": int64(-1)}, []string{"spec.standbyReplicas", "greater than or equal to 0"}},
		"mode Hybrid":            {fields{"spec.parallelism.mode": "Hybrid"}, []string{"spec.parallelism.mode", `"ExpertParallel", "TensorParallel", "Auto"`}},
		"mode and layers":        {merged(hybrid(layers(0, 1, int64(2))), fields{"spec.parallelism.mode": "Auto"}), []string{"spec.parallelism.layers", "mode and layers contradict each other"}},
		"auto in another mode":   {fields{"spec.parallelism.auto": map[string]any{}}, []string{"spec.parallelism.auto", "parallelism.auto is for mode Auto"}},
		"layers of nothing":      {fields{"spec.parallelism.layers": []any{}}, []string{"spec.parallelism.layers", "at least 1 items"}},
		"Hybrid of many":         {hybrid(items(25, map[string]any{})...), []string{"spec.parallelism.layers", "24"}},
		"Hybrid that decides":    {merged(hybrid(layers(0, 1, int64(2))), scaled(int64(1), int64(2), map[string]any{"ttftMilliseconds": int64(2000)})), []string{"spec.autoscaling", "autoscaling does not support hybrid layouts"}},
		"layers twice":           {hybrid(layers(0, 3, int64(2)), layers(3, 4, int64(1))), []string{"spec.parallelism.layers", "Ranges of layers overlap"}},
		"layers to the end":      {hybrid(layers(0, -1, int64(2)), layers(3, 4, int64(1))), []string{"spec.parallelism.layers", "a range without lastLayer ends at the last layer"}},
		"two for all":            {hybrid(map[string]any{}, map[string]any{"expertGroup": int64(2)}), []string{"spec.parallelism.layers", "Ranges of layers overlap"}},
		"layers backwards":       {hybrid(layers(4, 3, int64(2))), []string{"spec.parallelism.layers[0].lastLayer", "lastLayer is below firstLayer"}},
		"layers below 0":         {hybrid(layers(-1, 3, int64(2))), []string{"spec.parallelism.layers[0].firstLayer", "greater than or equal to 0"}},
		"groups of none":         {hybrid(layers(0, 3, int64(0))), []string{"spec.parallelism.layers[0].expertGroup", "expertGroup must be a number of ranks from 1 to 8192, or All"}},
		"groups in words":        {hybrid(layers(0, 3, "half")), []string{"spec.parallelism.layers[0].expertGroup", "or All"}},
		"groups of halves":       {hybrid(layers(0, 3, 1.5)), []string{"spec.parallelism.layers[0].expertGroup"}},
		"heads over none":        {hybrid(map[string]any{"attentionGroup": int64(-2)}), []string{"spec.parallelism.layers[0].attentionGroup", "attentionGroup must be a number of ranks from 1 to 8192, or All"}},
		"autoscaling alone":      {fields{"spec.autoscaling": map[string]any{}}, []string{"spec.autoscaling.slo: Required"}},
		"slo without bounds":     {fields{"spec.autoscaling": map[string]any{"slo": map[string]any{"ttftMilliseconds": int64(2000)}}}, []string{"spec.autoscaling", "Set minReplicas and maxReplicas"}},
		"replicas above bounds":  {fields{"spec.replicas": int64(5), "spec.maxReplicas": int64(4)}, []string{"spec.replicas", "replicas is outside minReplicas and maxReplicas"}},
		"replicas below bounds":  {fields{"spec.replicas": int64(1), "spec.minReplicas": int64(2)}, []string{"spec.replicas", "replicas is outside minReplicas and maxReplicas"}},
		"min above max":          {scaled(int64(3), int64(2), map[string]any{"ttftMilliseconds": int64(2000)}), []string{"spec.minReplicas", "minReplicas is above maxReplicas"}},
		"min of none":            {scaled(int64(0), int64(2), map[string]any{"ttftMilliseconds": int64(2000)}), []string{"spec.minReplicas", "greater than or equal to 1"}},
		"SLO of nothing":         {scaled(int64(1), int64(2), map[string]any{"attainmentPercent": int64(90)}), []string{"spec.autoscaling.slo", "An SLO needs ttftMilliseconds or tpotMilliseconds"}},
		"ttft 0":                 {scaled(int64(1), int64(2), map[string]any{"ttftMilliseconds": int64(0)}), []string{"spec.autoscaling.slo.ttftMilliseconds", "greater than or equal to 1"}},
		"tpot of days":           {scaled(int64(1), int64(2), map[string]any{"tpotMilliseconds": int64(1e8)}), []string{"spec.autoscaling.slo.tpotMilliseconds", "3600000"}},
		"all within":             {scaled(int64(1), int64(2), map[string]any{"ttftMilliseconds": int64(2000), "attainmentPercent": int64(100)}), []string{"spec.autoscaling.slo.attainmentPercent", "99"}},
		"maxReplicas of many":    {merged(scaled(int64(1), int64(1025), map[string]any{"ttftMilliseconds": int64(2000)}), fields{"spec.ranksPerPod": int64(8)}), []string{"spec.maxReplicas", "Lower maxReplicas, standbyReplicas or ranksPerPod"}},
		"unknown policy":         {fields{"spec.parallelism.mode": "Auto", "spec.parallelism.auto.policy": "Oracle"}, []string{"spec.parallelism.auto.policy", "Calibrated"}},
		"unknown action":         {fields{"spec.parallelism.mode": "Auto", "spec.parallelism.auto.action": "Guess"}, []string{"spec.parallelism.auto.action", "Recommend"}},
		"unknown mode":           {fields{"spec.parallelism.mode": "Both"}, []string{"spec.parallelism.mode", `"ExpertParallel", "TensorParallel"`}},
		"redundant experts":      {fields{"spec.experts.redundant": map[string]any{"count": int64(1)}}, []string{"spec.experts.redundant", "Rebalancing places redundant experts"}},
		"too many redundant":     {fields{"spec.experts.redundant": map[string]any{"count": int64(65537)}, "spec.experts.rebalance.mode": "Apply"}, []string{"spec.experts.redundant.count", "65536"}},
		"redundant twice":        {fields{"spec.experts.redundant": map[string]any{"count": int64(1), "max": int64(2)}, "spec.experts.rebalance.mode": "Apply"}, []string{"spec.experts.redundant", "not both"}},
		"redundant of nothing":   {fields{"spec.experts.redundant": map[string]any{}, "spec.experts.rebalance.mode": "Apply"}, []string{"spec.experts.redundant", "Set count for a fixed number"}},
		"rebalance all the time": {fields{"spec.experts.rebalance": map[string]any{"intervalSeconds": int64(0)}}, []string{"spec.experts.rebalance.intervalSeconds", "greater than or equal to 1"}},
		"moves below 0":          {fields{"spec.experts.rebalance": map[string]any{"maxMoves": int64(-1)}}, []string{"spec.experts.rebalance.maxMoves", "greater than or equal to 0"}},
		"never pays back":        {fields{"spec.experts.rebalance": map[string]any{"paybackSeconds": int64(604801)}}, []string{"spec.experts.rebalance.paybackSeconds", "604800"}},
		"gain above all":         {fields{"spec.experts.rebalance": map[string]any{"minimumGainPercent": int64(101)}}, []string{"spec.experts.rebalance.minimumGainPercent", "100"}},
		"unknown rebalancing":    {fields{"spec.experts.rebalance": map[string]any{"mode": "Some"}}, []string{"spec.experts.rebalance.mode", `"Off", "Recommend", "Apply"`}},
		"no model":               {fields{"spec.model": nil}, []string{"spec.model: Required"}},
		"no engine":              {fields{"spec.engine": nil}, []string{"spec.engine: Required"}},
		"no source":              {fields{"spec.model.source": map[string]any{}}, []string{"spec.model.source", "Set exactly one of model.source.persistentVolumeClaim"}},
		"two sources":            {fields{"spec.model.source.imageVolume": map[string]any{"reference": "models.example/demo:1"}}, []string{"spec.model.source", "Set exactly one of"}},
		"no image":               {fields{"spec.model.source": map[string]any{"imageVolume": map[string]any{"reference": ""}}}, []string{"reference"}},
		"no claim name":          {fields{"spec.model.source.persistentVolumeClaim.claimName": ""}, []string{"claimName"}},
		"absolute path":          {claim("/etc"), []string{"path", "path must be relative to the volume, without '..'"}},
		"path upwards":           {claim("a/../../b"), []string{"path", "path must be relative to the volume, without '..'"}},
		"path is upwards":        {claim(".."), []string{"path", "path must be relative to the volume, without '..'"}},
		"long path":              {claim(strings.Repeat("p", 1025)), []string{"path", "1024"}},
		"granuleRows 0":          {fields{"spec.tuning.granuleRows": int64(0)}, []string{"spec.tuning.granuleRows"}},
		"memory zero":            {fields{"spec.memory.weights": "0"}, []string{"spec.memory.weights", "must be above 0, e.g. 16Gi"}},
		"memory number zero":     {fields{"spec.memory.weights": int64(0)}, []string{"spec.memory.weights", "must be above 0, e.g. 16Gi"}},
		"memory below zero":      {fields{"spec.memory.weights": "-1Gi"}, []string{"spec.memory.weights", "must be above 0"}},
		"memory no quantity":     {fields{"spec.memory.weights": "much"}, []string{"spec.memory.weights"}},
		"KV zero":                {fields{"spec.memory.kvCache": "0Gi"}, []string{"spec.memory.kvCache", "must be above 0, e.g. 16Gi"}},
		"too many banks":         {fields{"spec.tuning.spareBanks": int64(1025)}, []string{"spec.tuning.spareBanks", "1024"}},
		"slabFormat of columns":  {fields{"spec.tuning.slabFormat": "ColumnMajor"}, []string{"spec.tuning.slabFormat", "GranuleMajor", "RowMajor"}},
		"granuleRows too many":   {fields{"spec.tuning.granuleRows": int64(1<<20 + 1)}, []string{"spec.tuning.granuleRows", "1048576"}},
		"long model name":        {fields{"spec.model.name": strings.Repeat("n", 254)}, []string{"spec.model.name", "253"}},
		"long claim name":        {fields{"spec.model.source.persistentVolumeClaim.claimName": strings.Repeat("n", 254)}, []string{"claimName", "253"}},
		"long image":             {fields{"spec.engine.image": strings.Repeat("i", 1025)}, []string{"spec.engine.image", "1024"}},
		"too many arguments":     {fields{"spec.engine.args": items(65, "-v")}, []string{"spec.engine.args", "64"}},
		"plain mesh alone":       {fields{"spec.engine.args": []any{"--insecure-fabric"}}, []string{"spec.engine.args", "the same for engines and agents", "network.encryption"}},
		"unknown encryption":     {fields{"spec.network": map[string]any{"encryption": "Some"}}, []string{"spec.network.encryption", `"Required", "None"`}},
		"unknown sharing":        {fields{"spec.network": map[string]any{"nodeMemorySharing": "allowed"}}, []string{"spec.network.nodeMemorySharing", `"Disabled", "Enabled"`}},
		"faults":                 {fields{"spec.engine.args": []any{"-v", "--faults=engine.before_emit=kill"}}, []string{"spec.engine.args", "Flags that start with --fault"}},
		"fault directory":        {fields{"spec.engine.args": []any{"--fault-dir", "/models"}}, []string{"spec.engine.args", "Flags that start with --fault"}},
		"too many variables":     {container(map[string]any{"name": "engine", "env": items(65, map[string]any{"name": "A"})}), []string{"env", "64"}},
		"too many tolerations":   {fields{"spec.template.spec.tolerations": items(33, map[string]any{"key": "a"})}, []string{"spec.template.spec.tolerations", "32"}},
		"long priority class":    {fields{"spec.template.spec.priorityClassName": strings.Repeat("n", 254)}, []string{"priorityClassName", "253"}},
		"grace period too long":  {fields{"spec.template.spec.terminationGracePeriodSeconds": int64(86401)}, []string{"terminationGracePeriodSeconds", "86400"}},
		"timeout too long":       {fields{"spec.transition.timeoutSeconds": int64(86401)}, []string{"spec.transition.timeoutSeconds", "86400"}},
		"unknown strategy":       {fields{"spec.transition.strategy": "Slow"}, []string{"spec.transition.strategy", `"Smooth"`}},
		"redundant below 0":      {fields{"spec.experts.redundant": map[string]any{"count": int64(-1)}, "spec.experts.rebalance.mode": "Apply"}, []string{"spec.experts.redundant.count", "greater than or equal to 1"}},
		"too many gateways":      {fields{"spec.gateway.replicas": int64(65)}, []string{"spec.gateway.replicas", "64"}},
		"no spare bank":          {fields{"spec.tuning.spareBanks": int64(0)}, []string{"spec.tuning.spareBanks"}},
		"no timeout":             {fields{"spec.transition.timeoutSeconds": int64(0)}, []string{"spec.transition.timeoutSeconds"}},
		"history too long":       {fields{"spec.tuning.historyLimit": int64(101)}, []string{"spec.tuning.historyLimit", "100"}},
		"all and more to stage":  {fields{"spec.transition.bandwidthPercent": int64(101)}, []string{"spec.transition.bandwidthPercent", "100"}},
		"no longer step":         {fields{"spec.tuning.maxStepStretchPercent": int64(0)}, []string{"spec.tuning.maxStepStretchPercent"}},
		"nothing to stage with":  {fields{"spec.transition.bandwidthPercent": int64(0)}, []string{"spec.transition.bandwidthPercent"}},
		"no history":             {fields{"spec.tuning.historyLimit": int64(0)}, []string{"spec.tuning.historyLimit"}},
		"hasty gateway":          {fields{"spec.gateway.template.spec.terminationGracePeriodSeconds": int64(19)}, []string{"spec.gateway.template", "at least 20"}},
		"no gateway":             {fields{"spec.gateway.replicas": int64(0)}, []string{"spec.gateway.replicas"}},
		"no text server":         {fields{"spec.gateway.text": map[string]any{}}, []string{"spec.gateway.text", "Set gateway.text.image to the vLLM image"}},
		"bytes by a server":      {fields{"spec.gateway.text": map[string]any{"tokenizer": "Bytes", "toolCallParser": "hermes"}}, []string{"spec.gateway.text", "Tokenizer Bytes has no text server"}},
		"a model of its own":     {fields{"spec.gateway.text": map[string]any{"image": "i", "args": []any{"--model=/x"}}}, []string{"spec.gateway.text.args", "Remove them from args"}},
		"no tokenizer":           {fields{"spec.gateway.text": map[string]any{"tokenizer": "Words"}}, []string{"spec.gateway.text.tokenizer", `"Bytes"`}},
		"gateway by name":        {fields{"spec.gateway.service.type": "ExternalName"}, []string{"spec.gateway.service.type", `"NodePort"`}},
		"class of no balancer":   {fields{"spec.gateway.service.loadBalancerClass": "example.com/x"}, []string{"spec.gateway.service.loadBalancerClass", "loadBalancerClass is for services of type LoadBalancer"}},
		"unknown pull policy":    {container(map[string]any{"name": "engine", "imagePullPolicy": "Sometimes"}), []string{"imagePullPolicy", `"IfNotPresent"`}},
		"unknown engine":         {fields{"spec.engine.name": "abacus"}, []string{"spec.engine.name", `"vllm", "reference", "custom"`}},
		"custom of no image":     {fields{"spec.engine.name": "custom"}, []string{"spec.engine.image", "Set engine.image"}},
		"grace period 0":         {fields{"spec.template.spec.terminationGracePeriodSeconds": int64(0)}, []string{"terminationGracePeriodSeconds"}},
		"memory of the agent":    {agent("limits", "memory"), []string{"spec.template.spec.containers", "follows from spec.memory"}},
		"request of the agent":   {agent("requests", "memory"), []string{"spec.template.spec.containers", "follows from spec.memory"}},
		"pages of the agent":     {agent("limits", "hugepages-2Mi"), []string{"spec.template.spec.containers", "follows from spec.memory"}},
		"two of one variable": {container(map[string]any{"name": "engine", "env": []any{map[string]any{"name": "A"}, map[string]any{"name": "A"}}}),
			[]string{"env[1]", "Duplicate"}},
		"unknown accelerator":   {fields{"spec.accelerator.type": "ROCm"}, []string{"spec.accelerator.type", `"NVIDIA"`}},
		"a GPU for the host":    {fields{"spec.accelerator": map[string]any{"resourceName": "nvidia.com/gpu"}}, []string{"spec.accelerator", "Set accelerator.type to NVIDIA"}},
		"handles on the host":   {fields{"spec.tuning.handleSize": "4Mi"}, []string{"spec.tuning.handleSize", "Remove tuning.handleSize"}},
		"two ranks of one GPU":  {cuda("spec.ranksPerPod", int64(2)), []string{"spec.ranksPerPod", "Set ranksPerPod to 1"}},
		"huge pages of a GPU":   {cuda("spec.memory.pageSize", "2Mi"), []string{"spec.memory.pageSize", "Remove memory.pageSize"}},
		"claim and plugin":      {merged(cuda("spec.accelerator.resourceName", "nvidia.com/gpu"), cuda("spec.accelerator.deviceClassName", "gpu.nvidia.com")), []string{"spec.accelerator", "Remove one of them"}},
		"plugin with selectors": {merged(cuda("spec.accelerator.resourceName", "nvidia.com/gpu"), cuda("spec.accelerator.selectors", []any{"true"})), []string{"spec.accelerator.selectors", "has no selectors"}},
		"a MIG slice":           {cuda("spec.accelerator.resourceName", "nvidia.com/mig-1g.10gb"), []string{"spec.accelerator.resourceName", "MIG slice", "e.g. nvidia.com/gpu"}},
		"a class of MIG slices": {cuda("spec.accelerator.deviceClassName", "mig.nvidia.com"), []string{"spec.accelerator.deviceClassName", "MIG slice", "e.g. gpu.nvidia.com"}},
		"no resource's name":    {cuda("spec.accelerator.resourceName", "gpu"), []string{"spec.accelerator.resourceName", "DOMAIN/NAME"}},
		"odd handles":           {cuda("spec.tuning.handleSize", "3Mi"), []string{"spec.tuning.handleSize", "must be a multiple of 2Mi"}},
		"no handles":            {cuda("spec.tuning.handleSize", "0"), []string{"spec.tuning.handleSize", "must be a multiple of 2Mi"}},
		"no shared memory":      {cuda("spec.accelerator.sharedMemory", "0"), []string{"spec.accelerator.sharedMemory", "above 0"}},
		"long name":             {fields{"metadata.name": strings.Repeat("n", 41)}, []string{"at most 40 characters"}},
		"name with dot":         {fields{"metadata.name": "a.b"}, []string{"start with a letter and contain only lower-case letters"}},
		"name with digit":       {fields{"metadata.name": "1a"}, []string{"start with a letter and contain only lower-case letters"}},
	}
	c := newClient(t)
	namespace := newNamespace(t, c)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object := smallestIn(t, namespace)
			for path, value := range test.fields {
				set(t, object, path, value)
			}
			refused(t, c.Create(t.Context(), object), test.words...)
		})
	}
}

// cuda sets one more field of a world on GPUs.
func cuda(path string, value any) fields {
	return fields{"spec.accelerator.type": "NVIDIA", path: value}
}

// container sets a container of the ranks' pod template.
func container(c map[string]any) fields {
	return fields{"spec.template.spec.containers": []any{c}}
}

// agent sets a resource of the agent's container.
func agent(list, resource string) fields {
	return container(map[string]any{"name": "agent", "resources": map[string]any{list: map[string]any{resource: "1Gi"}}})
}

// items returns a list of n equal items.
func items(n int, item any) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = item
	}
	return list
}

func TestCreateIsAccepted(t *testing.T) {
	tests := map[string]fields{
		"the smallest":        {},
		"no memory":           {"spec.memory": nil},
		"KV alone":            {"spec.memory": map[string]any{"kvCache": "1Gi"}},
		"mode TensorParallel": {"spec.parallelism.mode": "TensorParallel"},
		"8192 ranks":          {"spec.replicas": int64(1024), "spec.ranksPerPod": int64(8)},
		"numbers of bytes":    {"spec.memory.weights": int64(1 << 30), "spec.memory.kvCache": int64(1)},
		"longest name":        {"metadata.name": strings.Repeat("n", 40)},
		"dots in a folder":    {"spec.model.source.persistentVolumeClaim.path": "models/..demo/v1.5"},
		"agent's CPU":         agent("limits", "cpu"),
		"huge pages":          {"spec.memory.pageSize": "2Mi"},
		"mode Auto":           {"spec.parallelism.mode": "Auto"},
		"mode Hybrid":         hybrid(layers(0, 3, int64(2)), layers(5, -1, "All"), map[string]any{"firstLayer": int64(4), "lastLayer": int64(4), "attentionGroup": "All"}),
		"Hybrid for all":      hybrid(map[string]any{"expertGroup": int64(8192)}),
		"much of Hybrid":      hybrid(each(24)...),
		"a recommendation": {"spec.parallelism": map[string]any{"mode": "Auto", "auto": map[string]any{"action": "Recommend", "policy": "Threshold",
			"kernelProfile": "Qwen3-235B-A22B/trtllm/balanced"}}},
		"bounds alone":  {"spec.replicas": int64(3), "spec.minReplicas": int64(2), "spec.maxReplicas": int64(4)},
		"plain network": {"spec.network": map[string]any{"encryption": "None"}},
		"on GPUs":       {"spec.accelerator.type": "NVIDIA"},
		"on large GPUs": {"spec.tuning.handleSize": "36Mi", "spec.accelerator": map[string]any{"type": "NVIDIA", "deviceClassName": "h200", "selectors": []any{"true"}, "runtimeClassName": "nvidia", "sharedMemory": "4Gi"}},
		"by a plugin":   cuda("spec.accelerator.resourceName", "nvidia.com/gpu"),
		"node memory":   {"spec.network": map[string]any{"nodeMemorySharing": "Enabled"}},
		"redundant":     {"spec.experts": map[string]any{"redundant": map[string]any{"max": int64(8)}, "rebalance": map[string]any{"mode": "Recommend", "paybackSeconds": int64(0), "minimumGainPercent": int64(0)}}},
		"a balancer":    {"spec.gateway.service": map[string]any{"type": "LoadBalancer", "loadBalancerClass": "example.com/x", "annotations": map[string]any{"a": "b"}}},
	}
	c := newClient(t)
	for name, fields := range tests {
		t.Run(name, func(t *testing.T) {
			object := smallestIn(t, newNamespace(t, c))
			for path, value := range fields {
				set(t, object, path, value)
			}
			require.NoError(t, c.Create(t.Context(), object))
		})
	}
}

// each returns a range for each of the first n layers.
func each(n int) []any {
	var out []any
	for i := range int64(n) {
		out = append(out, layers(i, i, int64(2)))
	}
	return out
}

func TestChangeIsRejected(t *testing.T) {
	const anotherName = "create a MoEDeployment with another name"
	tests := map[string]struct {
		fields fields
		words  []string
	}{
		"claim":       {fields{"spec.model.source.persistentVolumeClaim.claimName": "other"}, []string{"spec.model", anotherName}},
		"path":        {fields{"spec.model.source.persistentVolumeClaim.path": "other"}, []string{"spec.model", anotherName}},
		"granuleRows": {fields{"spec.tuning.granuleRows": int64(32)}, []string{"spec.tuning", anotherName}},
		"slabFormat":  {fields{"spec.tuning.slabFormat": "RowMajor"}, []string{"spec.tuning", "slabFormat", anotherName}},
		"image":       {fields{"spec.engine.image": "other"}, []string{"spec.engine", "The engine is immutable", anotherName}},
		"args":        {fields{"spec.engine.args": []any{"-v"}}, []string{"spec.engine", anotherName}},
		"no args":     {fields{"spec.engine.args": nil}, []string{"spec.engine", anotherName}},
		"memory":      {fields{"spec.memory.weights": "65Mi"}, []string{"spec.memory", anotherName}},
		"KV":          {fields{"spec.memory.kvCache": "17Mi"}, []string{"spec.memory", anotherName}},
		"spareBanks":  {fields{"spec.tuning.spareBanks": int64(3)}, []string{"spec.tuning", anotherName}},
		"hugePages":   {fields{"spec.memory.pageSize": "2Mi"}, []string{"spec.memory", anotherName}},
		"fabric":      {fields{"spec.network": map[string]any{"encryption": "None"}}, []string{"spec.network.encryption", anotherName}},
		"sharing":     {fields{"spec.network": map[string]any{"nodeMemorySharing": "Enabled"}}, []string{"spec.network.nodeMemorySharing", anotherName}},
		"accelerator": {fields{"spec.accelerator.type": "NVIDIA"}, []string{"spec.accelerator", "accelerator is immutable", anotherName}},
		"ranksPerPod": {fields{"spec.ranksPerPod": int64(2)}, []string{"spec.ranksPerPod", anotherName}},
		"replicas 0":  {fields{"spec.replicas": int64(0)}, []string{"spec.replicas", "To stop serving, delete the MoEDeployment"}},
	}
	c := newClient(t)
	namespace := newNamespace(t, c)
	created := smallestIn(t, namespace)
	set(t, created, "spec.engine", map[string]any{"args": []any{"-q"}, "name": "reference"})
	set(t, created, "spec.tuning.granuleRows", int64(64))
	require.NoError(t, c.Create(t.Context(), created))
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object := created.DeepCopy()
			for path, value := range test.fields {
				set(t, object, path, value)
			}
			refused(t, c.Update(t.Context(), object), test.words...)
		})
	}
	gpu := smallestIn(t, namespace)
	gpu.SetName("gpu")
	set(t, gpu, "spec.accelerator.type", "NVIDIA")
	set(t, gpu, "spec.tuning.handleSize", "4Mi")
	require.NoError(t, c.Create(t.Context(), gpu))
	set(t, gpu, "spec.tuning.handleSize", "8Mi")
	refused(t, c.Update(t.Context(), gpu), "spec.tuning", anotherName)
}

func TestChangeIsAccepted(t *testing.T) {
	tests := map[string]fields{
		"mode":              {"spec.parallelism.mode": "TensorParallel"},
		"mode Auto":         {"spec.parallelism": map[string]any{"mode": "Auto", "auto": map[string]any{"action": "Apply"}}},
		"mode Hybrid":       hybrid(layers(0, -1, "All")),
		"replicas":          {"spec.replicas": int64(6)},
		"model name":        {"spec.model.name": "other"},
		"gateway":           {"spec.gateway.replicas": int64(3)},
		"text":              {"spec.gateway.text": map[string]any{"image": "vllm", "reasoningParser": "qwen3"}},
		"tuning":            {"spec.tuning.historyLimit": int64(5), "spec.tuning.maxStepStretchPercent": int64(50)},
		"transition":        {"spec.transition.timeoutSeconds": int64(5)},
		"template":          {"spec.template.spec.nodeSelector": map[string]any{"disk": "fast"}},
		"same, other words": {"spec.memory.weights": "65536Ki"},
		"same, in bytes":    {"spec.memory.kvCache": int64(16 << 20)},
	}
	c := newClient(t)
	for name, fields := range tests {
		t.Run(name, func(t *testing.T) {
			object := smallestIn(t, newNamespace(t, c))
			require.NoError(t, c.Create(t.Context(), object))
			for path, value := range fields {
				set(t, object, path, value)
			}
			require.NoError(t, c.Update(t.Context(), object))
		})
	}
}

// An empty list and an empty image equal absent ones.
func TestEquivalentEngineIsNoChange(t *testing.T) {
	plain, empty := map[string]any{"name": "reference"}, map[string]any{"name": "reference", "args": []any{}, "image": ""}
	tests := map[string]struct{ was, is map[string]any }{"none, and empty": {plain, empty}, "empty, and none": {empty, plain}}
	c := newClient(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object := smallestIn(t, newNamespace(t, c))
			set(t, object, "spec.engine", test.was)
			require.NoError(t, c.Create(t.Context(), object))
			set(t, object, "spec.engine", test.is)
			require.NoError(t, c.Update(t.Context(), object))
		})
	}
}

// An unknown field is a misspelt one: strict clients (kubectl's default) get an error.
func TestUnknownFieldIsRejected(t *testing.T) {
	c := newClient(t)
	object := smallestIn(t, newNamespace(t, c))
	set(t, object, "spec.replica", int64(4))
	err := client.WithFieldValidation(c, "Strict").Create(t.Context(), object)
	require.ErrorContains(t, err, `unknown field "spec.replica"`)
}

func TestLayoutTransitionSpecIsImmutable(t *testing.T) {
	c := newClient(t)
	transition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.tangram.dev/v1alpha2", "kind": "LayoutTransition",
		"metadata": map[string]any{"name": "demo-1", "namespace": newNamespace(t, c)},
		"spec": map[string]any{
			"moeDeploymentName": "demo", "moeDeploymentGeneration": int64(1), "kind": "Scale", "summary": "4 ranks ExpertParallel -> 6 ranks ExpertParallel",
			"from": map[string]any{"epoch": int64(1)}, "to": map[string]any{"layoutHash": "aa", "ranks": int64(6), "mode": "ExpertParallel"}, "planHash": "bb", "flips": int64(3),
			"members":     []any{"a.0.1", "b.0.1"},
			"expertBytes": int64(1), "expertBytesLowerBound": int64(1), "denseBytes": int64(0),
		},
	}}
	require.NoError(t, c.Create(t.Context(), transition))

	changed := transition.DeepCopy()
	set(t, changed, "spec.to.ranks", int64(7))
	refused(t, c.Update(t.Context(), changed), "Change the MoEDeployment instead")

	set(t, transition, "status.phase", "Flipping")
	require.NoError(t, c.Status().Update(t.Context(), transition))
	set(t, transition, "status.phase", "Dancing")
	refused(t, c.Status().Update(t.Context(), transition), "status.phase", `"Succeeded"`)
}

// The operator reads typed objects, in which quantities are formatted differently (65536Ki: 64Mi). Its writes (a merge
// patch of the metadata and an update of the status) must not count as changes of an immutable field.
func TestOperatorWritesAreNoChange(t *testing.T) {
	c := newClient(t)
	namespace := newNamespace(t, c)
	object := smallestIn(t, namespace)
	set(t, object, "spec.memory.weights", "65536Ki")
	set(t, object, "spec.engine.args", []any{})
	require.NoError(t, c.Create(t.Context(), object))

	world := &v1alpha2.MoEDeployment{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), world))
	before := world.DeepCopy()
	world.Finalizers = append(world.Finalizers, v1alpha2.Finalizer)
	require.NoError(t, c.Patch(t.Context(), world, client.MergeFrom(before)))
	world.Status.Epoch = 1
	require.NoError(t, c.Status().Update(t.Context(), world))

	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	memory, _, err := unstructured.NestedString(object.Object, "spec", "memory", "weights")
	require.NoError(t, err)
	require.Equal(t, "65536Ki", memory, "the user's words are kept")
}
