package api_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"tangram.dev/api/v1alpha1"
)

// fields that differ from the smallest good object, by path.
type fields map[string]any

// refused must hold: the server answered Invalid and each of words is in its answer.
func refused(t *testing.T, err error, words ...string) {
	t.Helper()
	require.Error(t, err, "the server accepted it; it should have said %q", words)
	require.True(t, apierrors.IsInvalid(err), "not refused as Invalid: %v", err)
	for _, word := range words {
		require.ErrorContains(t, err, word)
	}
}

// hybrid of such ranges of layers.
func hybrid(ranges ...any) fields {
	return fields{"spec.mode": "Hybrid", "spec.layout": ranges}
}

// layers from first to last, to the model's last one if that is negative, whose experts are in groups of so many ranks.
func layers(first, last int64, group any) map[string]any {
	out := map[string]any{"firstLayer": first, "expertGroup": group}
	if last >= 0 {
		out["lastLayer"] = last
	}
	return out
}

// scaled between so many replicas.
func scaled(least, most int64, slo map[string]any) fields {
	return fields{"spec.autoscaling": map[string]any{"minReplicas": least, "maxReplicas": most, "slo": slo}}
}

func merged(all ...fields) fields {
	out := fields{}
	for _, f := range all {
		maps.Copy(out, f)
	}
	return out
}

func TestCreateIsRefused(t *testing.T) {
	claim := func(path string) fields {
		return fields{"spec.model.source.persistentVolumeClaim": map[string]any{"claimName": "c", "path": path}}
	}
	tests := map[string]struct {
		fields fields
		words  []string
	}{
		"replicas 0":             {fields{"spec.replicas": int64(0)}, []string{"spec.replicas", "to stop serving, delete the MoEDeployment"}},
		"replicas below 0":       {fields{"spec.replicas": int64(-1)}, []string{"spec.replicas", "greater than or equal to 1"}},
		"too many replicas":      {fields{"spec.replicas": int64(8193)}, []string{"spec.replicas", "less than or equal to 8192"}},
		"no rank in a pod":       {fields{"spec.ranksPerPod": int64(0)}, []string{"spec.ranksPerPod", "greater than or equal to 1"}},
		"too many ranks in pod":  {fields{"spec.ranksPerPod": int64(65)}, []string{"spec.ranksPerPod", "less than or equal to 64"}},
		"too many ranks":         {fields{"spec.replicas": int64(1025), "spec.ranksPerPod": int64(8)}, []string{"spec.replicas", "at most 8192 ranks, those of standby included"}},
		"too many with standby":  {fields{"spec.replicas": int64(8192), "spec.standby": int64(1)}, []string{"spec.replicas", "lower replicas, standby or ranksPerPod"}},
		"standby of none":        {fields{"spec.standby": int64(-1)}, []string{"spec.standby", "greater than or equal to 0"}},
		"mode Hybrid alone":      {fields{"spec.mode": "Hybrid"}, []string{"spec.layout", "mode Hybrid needs layout", "e.g. layout: [{expertGroup: 2, attentionGroup: 1}]"}},
		"Hybrid of nothing":      {fields{"spec.mode": "Hybrid", "spec.layout": []any{}}, []string{"spec.layout", "at least 1 items"}},
		"Hybrid of many":         {hybrid(items(25, map[string]any{})...), []string{"spec.layout", "24"}},
		"Hybrid that decides":    {merged(hybrid(layers(0, 1, int64(2))), scaled(int64(1), int64(2), map[string]any{"ttft": "2s"})), []string{"spec.autoscaling", "autoscaling is for Expert, Tensor and Auto"}},
		"layers twice":           {hybrid(layers(0, 3, int64(2)), layers(3, 4, int64(1))), []string{"spec.layout", "ranges of layers overlap"}},
		"layers to the end":      {hybrid(layers(0, -1, int64(2)), layers(3, 4, int64(1))), []string{"spec.layout", "a range without lastLayer goes on to the last layer"}},
		"two for all":            {hybrid(map[string]any{}, map[string]any{"expertGroup": int64(2)}), []string{"spec.layout", "ranges of layers overlap"}},
		"layers backwards":       {hybrid(layers(4, 3, int64(2))), []string{"spec.layout[0].lastLayer", "lastLayer is below firstLayer"}},
		"layers below 0":         {hybrid(layers(-1, 3, int64(2))), []string{"spec.layout[0].firstLayer", "greater than or equal to 0"}},
		"groups of none":         {hybrid(layers(0, 3, int64(0))), []string{"spec.layout[0].expertGroup", "expertGroup is a number of ranks, 1 to 8192, or All"}},
		"groups in words":        {hybrid(layers(0, 3, "half")), []string{"spec.layout[0].expertGroup", "or All"}},
		"groups of halves":       {hybrid(layers(0, 3, 1.5)), []string{"spec.layout[0].expertGroup"}},
		"heads over none":        {hybrid(map[string]any{"attentionGroup": int64(-2)}), []string{"spec.layout[0].attentionGroup", "attentionGroup is a number of ranks, 1 to 8192, or All"}},
		"autoscaling alone":      {fields{"spec.autoscaling": map[string]any{}}, []string{"spec.autoscaling", "set mode: Auto or slo, or leave autoscaling out"}},
		"slo without bounds":     {fields{"spec.autoscaling": map[string]any{"slo": map[string]any{"ttft": "2s"}}}, []string{"spec.autoscaling", "set all three, or none"}},
		"bounds without slo":     {fields{"spec.mode": "Auto", "spec.autoscaling": map[string]any{"minReplicas": int64(1), "maxReplicas": int64(2)}}, []string{"spec.autoscaling", "set all three, or none"}},
		"min above max":          {scaled(int64(3), int64(2), map[string]any{"ttft": "2s"}), []string{"spec.autoscaling.minReplicas", "minReplicas is above maxReplicas"}},
		"min of none":            {scaled(int64(0), int64(2), map[string]any{"ttft": "2s"}), []string{"spec.autoscaling.minReplicas", "greater than or equal to 1"}},
		"SLO of nothing":         {scaled(int64(1), int64(2), map[string]any{"attainment": int64(90)}), []string{"spec.autoscaling.slo", "an SLO needs ttft or tpot"}},
		"ttft 0":                 {scaled(int64(1), int64(2), map[string]any{"ttft": "0s"}), []string{"spec.autoscaling.slo.ttft", "ttft must be above 0"}},
		"tpot of days":           {scaled(int64(1), int64(2), map[string]any{"tpot": "48h"}), []string{"spec.autoscaling.slo.tpot", "tpot must be above 0 and at most 1h"}},
		"all within":             {scaled(int64(1), int64(2), map[string]any{"ttft": "2s", "attainment": int64(100)}), []string{"spec.autoscaling.slo.attainment", "99"}},
		"maxReplicas of many":    {merged(scaled(int64(1), int64(1025), map[string]any{"ttft": "2s"}), fields{"spec.ranksPerPod": int64(8)}), []string{"spec.autoscaling.maxReplicas", "lower maxReplicas, standby or ranksPerPod"}},
		"unknown policy":         {fields{"spec.mode": "Auto", "spec.autoscaling.policy": "Oracle"}, []string{"spec.autoscaling.policy", "Calibrated"}},
		"unknown kernels":        {fields{"spec.mode": "Auto", "spec.autoscaling.prior": map[string]any{"engine": "abacus"}}, []string{"spec.autoscaling.prior.engine", "trtllm"}},
		"unknown mode":           {fields{"spec.mode": "Both"}, []string{"spec.mode", `"Expert", "Tensor"`}},
		"redundantExperts":       {fields{"spec.redundantExperts": int64(1)}, []string{"spec.redundantExperts", "placed by rebalance: set rebalance too"}},
		"too many redundant":     {fields{"spec.redundantExperts": int64(65537), "spec.rebalance": map[string]any{}}, []string{"spec.redundantExperts", "65536"}},
		"rebalance all the time": {fields{"spec.rebalance": map[string]any{"intervalSeconds": int64(0)}}, []string{"spec.rebalance.intervalSeconds", "greater than or equal to 1"}},
		"moves below 0":          {fields{"spec.rebalance": map[string]any{"maxMoves": int64(-1)}}, []string{"spec.rebalance.maxMoves", "greater than or equal to 0"}},
		"never pays back":        {fields{"spec.rebalance": map[string]any{"payBackSeconds": int64(604801)}}, []string{"spec.rebalance.payBackSeconds", "604800"}},
		"gain above all":         {fields{"spec.rebalance": map[string]any{"minGainPercent": int64(101)}}, []string{"spec.rebalance.minGainPercent", "100"}},
		"unknown budget":         {fields{"spec.rebalance": map[string]any{"budget": "Some"}}, []string{"spec.rebalance.budget", `"Fixed", "Automatic"`}},
		"no model":               {fields{"spec.model": nil}, []string{"spec.model: Required"}},
		"no engine":              {fields{"spec.engine": nil}, []string{"spec.engine: Required"}},
		"no limits":              {fields{"spec.limits": nil}, []string{"spec.limits: Required"}},
		"no revision":            {fields{"spec.model.revision": nil}, []string{"spec.model.revision: Required"}},
		"empty revision":         {fields{"spec.model.revision": ""}, []string{"spec.model.revision"}},
		"long revision":          {fields{"spec.model.revision": strings.Repeat("r", 64)}, []string{"spec.model.revision", "63"}},
		"no source":              {fields{"spec.model.source": map[string]any{}}, []string{"spec.model.source", "name a persistentVolumeClaim that holds the checkpoint"}},
		"no claim name":          {fields{"spec.model.source.persistentVolumeClaim.claimName": ""}, []string{"claimName"}},
		"absolute path":          {claim("/etc"), []string{"path", "relative to the volume and may not hold '..'"}},
		"path upwards":           {claim("a/../../b"), []string{"path", "relative to the volume and may not hold '..'"}},
		"path is upwards":        {claim(".."), []string{"path", "relative to the volume and may not hold '..'"}},
		"long path":              {claim(strings.Repeat("p", 1025)), []string{"path", "1024"}},
		"granuleRows 0":          {fields{"spec.model.granuleRows": int64(0)}, []string{"spec.model.granuleRows"}},
		"memory zero":            {fields{"spec.limits.memoryPerRank": "0"}, []string{"spec.limits.memoryPerRank", "must be above 0: say how much"}},
		"memory number zero":     {fields{"spec.limits.memoryPerRank": int64(0)}, []string{"spec.limits.memoryPerRank", "must be above 0: say how much"}},
		"memory below zero":      {fields{"spec.limits.memoryPerRank": "-1Gi"}, []string{"spec.limits.memoryPerRank", "must be above 0"}},
		"memory no quantity":     {fields{"spec.limits.memoryPerRank": "much"}, []string{"spec.limits.memoryPerRank"}},
		"KV zero":                {fields{"spec.limits.kvMemoryPerRank": "0Gi"}, []string{"spec.limits.kvMemoryPerRank", "must be above 0: say how much"}},
		"too many banks":         {fields{"spec.limits.spareBanks": int64(1025)}, []string{"spec.limits.spareBanks", "1024"}},
		"slabFormat of columns":  {fields{"spec.model.slabFormat": "ColumnMajor"}, []string{"spec.model.slabFormat", "GranuleMajor", "RowMajor"}},
		"granuleRows too many":   {fields{"spec.model.granuleRows": int64(1<<20 + 1)}, []string{"spec.model.granuleRows", "1048576"}},
		"long model name":        {fields{"spec.model.name": strings.Repeat("n", 254)}, []string{"spec.model.name", "253"}},
		"long claim name":        {fields{"spec.model.source.persistentVolumeClaim.claimName": strings.Repeat("n", 254)}, []string{"claimName", "253"}},
		"long image":             {fields{"spec.engine.image": strings.Repeat("i", 1025)}, []string{"spec.engine.image", "1024"}},
		"too many arguments":     {fields{"spec.engine.args": items(65, "-v")}, []string{"spec.engine.args", "64"}},
		"plain mesh alone":       {fields{"spec.engine.args": []any{"--insecure-fabric"}}, []string{"spec.engine.args", "for engines and agents alike", "network.insecureFabric"}},
		"fabric in words":        {fields{"spec.network": map[string]any{"insecureFabric": "yes"}}, []string{"spec.network.insecureFabric", "boolean"}},
		"sharing in words":       {fields{"spec.network": map[string]any{"shareNodeMemory": "allowed"}}, []string{"spec.network.shareNodeMemory", "boolean"}},
		"faults":                 {fields{"spec.engine.args": []any{"-v", "--faults=engine.before_emit=kill"}}, []string{"spec.engine.args", "flags that begin with --fault"}},
		"fault directory":        {fields{"spec.engine.args": []any{"--fault-dir", "/models"}}, []string{"spec.engine.args", "flags that begin with --fault"}},
		"too many variables":     {fields{"spec.engine.env": items(65, map[string]any{"name": "A"})}, []string{"spec.engine.env", "64"}},
		"too many tolerations":   {fields{"spec.scheduling.tolerations": items(33, map[string]any{"key": "a"})}, []string{"spec.scheduling.tolerations", "32"}},
		"long priority class":    {fields{"spec.scheduling.priorityClassName": strings.Repeat("n", 254)}, []string{"priorityClassName", "253"}},
		"grace period too long":  {fields{"spec.scheduling.terminationGracePeriodSeconds": int64(86401)}, []string{"terminationGracePeriodSeconds", "86400"}},
		"timeout too long":       {fields{"spec.transition.timeoutSeconds": int64(86401)}, []string{"spec.transition.timeoutSeconds", "86400"}},
		"unknown strategy":       {fields{"spec.transition.strategy": "Slow"}, []string{"spec.transition.strategy", `"Smooth"`}},
		"redundant below 0":      {fields{"spec.redundantExperts": int64(-1)}, []string{"spec.redundantExperts", "greater than or equal to 0"}},
		"too many gateways":      {fields{"spec.gateway.replicas": int64(65)}, []string{"spec.gateway.replicas", "64"}},
		"no spare bank":          {fields{"spec.limits.spareBanks": int64(0)}, []string{"spec.limits.spareBanks"}},
		"no timeout":             {fields{"spec.transition.timeoutSeconds": int64(0)}, []string{"spec.transition.timeoutSeconds"}},
		"history too long":       {fields{"spec.transition.historyLimit": int64(101)}, []string{"spec.transition.historyLimit", "100"}},
		"all and more to stage":  {fields{"spec.transition.stagingPercent": int64(101)}, []string{"spec.transition.stagingPercent", "100"}},
		"no longer step":         {fields{"spec.transition.maxStepStretchPercent": int64(0)}, []string{"spec.transition.maxStepStretchPercent"}},
		"nothing to stage with":  {fields{"spec.transition.stagingPercent": int64(0)}, []string{"spec.transition.stagingPercent"}},
		"no history":             {fields{"spec.transition.historyLimit": int64(0)}, []string{"spec.transition.historyLimit"}},
		"hasty gateway":          {fields{"spec.gateway.terminationGracePeriodSeconds": int64(19)}, []string{"spec.gateway.terminationGracePeriodSeconds", "20"}},
		"no gateway":             {fields{"spec.gateway.replicas": int64(0)}, []string{"spec.gateway.replicas"}},
		"no text server":         {fields{"spec.gateway.text": map[string]any{}}, []string{"spec.gateway.text", "set gateway.text.image to the vLLM image"}},
		"bytes by a server":      {fields{"spec.gateway.text": map[string]any{"tokenizer": "Bytes", "toolCallParser": "hermes"}}, []string{"spec.gateway.text", "tokenizer Bytes needs no text server"}},
		"a model of its own":     {fields{"spec.gateway.text": map[string]any{"image": "i", "args": []any{"--model=/x"}}}, []string{"spec.gateway.text.args", "leave them out of args"}},
		"no tokenizer":           {fields{"spec.gateway.text": map[string]any{"tokenizer": "Words"}}, []string{"spec.gateway.text.tokenizer", `"Bytes"`}},
		"gateway by name":        {fields{"spec.gateway.serviceType": "ExternalName"}, []string{"spec.gateway.serviceType", `"NodePort"`}},
		"unknown pull policy":    {fields{"spec.engine.imagePullPolicy": "Sometimes"}, []string{"spec.engine.imagePullPolicy", `"IfNotPresent"`}},
		"grace period 0":         {fields{"spec.scheduling.terminationGracePeriodSeconds": int64(0)}, []string{"terminationGracePeriodSeconds"}},
		"memory of the agent": {fields{"spec.scheduling.agentResources.limits": map[string]any{"memory": "1Gi"}},
			[]string{"spec.scheduling.agentResources", "follows from spec.limits: leave it out here"}},
		"request of the agent": {fields{"spec.scheduling.agentResources.requests": map[string]any{"memory": "1Gi"}},
			[]string{"spec.scheduling.agentResources", "follows from spec.limits: leave it out here"}},
		"pages of the agent": {fields{"spec.scheduling.agentResources.limits": map[string]any{"hugepages-2Mi": "1Gi"}},
			[]string{"spec.scheduling.agentResources", "follows from spec.limits: leave it out here"}},
		"two of one variable": {fields{"spec.engine.env": []any{map[string]any{"name": "A"}, map[string]any{"name": "A"}}},
			[]string{"spec.engine.env[1]", "Duplicate"}},
		"unknown backend":       {fields{"spec.backend": "ROCm"}, []string{"spec.backend", `"CUDA"`}},
		"a GPU for the host":    {fields{"spec.gpu": map[string]any{}}, []string{"spec.gpu", "set backend: CUDA, or leave gpu out"}},
		"two ranks of one GPU":  {cuda("spec.ranksPerPod", int64(2)), []string{"spec.ranksPerPod", "set ranksPerPod: 1 and more replicas"}},
		"huge pages of a GPU":   {cuda("spec.limits.hugePages", true), []string{"spec.limits.hugePages", "leave hugePages out"}},
		"claim and plugin":      {cuda("spec.gpu", map[string]any{"resourceName": "nvidia.com/gpu", "deviceClassName": "gpu.nvidia.com"}), []string{"spec.gpu", "leave one out"}},
		"plugin with selectors": {cuda("spec.gpu", map[string]any{"resourceName": "nvidia.com/gpu", "selectors": []any{"true"}}), []string{"spec.gpu.selectors", "knows no selectors"}},
		"a MIG slice":           {cuda("spec.gpu.resourceName", "nvidia.com/mig-1g.10gb"), []string{"spec.gpu.resourceName", "MIG slice", "e.g. nvidia.com/gpu"}},
		"a class of MIG slices": {cuda("spec.gpu.deviceClassName", "mig.nvidia.com"), []string{"spec.gpu.deviceClassName", "MIG slice", "e.g. gpu.nvidia.com"}},
		"no resource's name":    {cuda("spec.gpu.resourceName", "gpu"), []string{"spec.gpu.resourceName", "domain/name"}},
		"odd handles":           {cuda("spec.gpu.handleSize", "3Mi"), []string{"spec.gpu.handleSize", "a multiple of 2Mi"}},
		"no handles":            {cuda("spec.gpu.handleSize", "0"), []string{"spec.gpu.handleSize", "a multiple of 2Mi"}},
		"no shared memory":      {cuda("spec.gpu.sharedMemory", "0"), []string{"spec.gpu.sharedMemory", "above 0"}},
		"long name":             {fields{"metadata.name": strings.Repeat("n", 41)}, []string{"at most 40 characters"}},
		"name with dot":         {fields{"metadata.name": "a.b"}, []string{"start with a letter and hold only lower-case letters"}},
		"name with digit":       {fields{"metadata.name": "1a"}, []string{"start with a letter and hold only lower-case letters"}},
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

// cuda is one more field of a world on GPUs.
func cuda(path string, value any) fields {
	return fields{"spec.backend": "CUDA", path: value}
}

// items is a list of n times the same.
func items(n int, item any) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = item
	}
	return list
}

func TestCreateIsAccepted(t *testing.T) {
	tests := map[string]fields{
		"the smallest":      {},
		"mode Tensor":       {"spec.mode": "Tensor"},
		"8192 ranks":        {"spec.replicas": int64(1024), "spec.ranksPerPod": int64(8)},
		"numbers of bytes":  {"spec.limits.memoryPerRank": int64(1 << 30), "spec.limits.kvMemoryPerRank": int64(1)},
		"longest name":      {"metadata.name": strings.Repeat("n", 40)},
		"dots in a folder":  {"spec.model.source.persistentVolumeClaim.path": "models/..demo/v1.5"},
		"agent's CPU":       {"spec.scheduling.agentResources.limits": map[string]any{"cpu": "2"}},
		"huge pages":        {"spec.limits.hugePages": true},
		"mode Auto":         {"spec.mode": "Auto"},
		"mode Hybrid":       hybrid(layers(0, 3, int64(2)), layers(5, -1, "All"), map[string]any{"firstLayer": int64(4), "lastLayer": int64(4), "attentionGroup": "All"}),
		"Hybrid for all":    hybrid(map[string]any{"expertGroup": int64(8192)}),
		"much of Hybrid":    hybrid(each(24)...),
		"layout that waits": {"spec.mode": "Tensor", "spec.layout": []any{layers(0, 3, int64(2))}},
		"a dry run": {"spec.mode": "Auto", "spec.autoscaling": map[string]any{"dryRun": true, "policy": "Threshold",
			"prior": map[string]any{"model": "Qwen3-235B-A22B", "engine": "trtllm", "routing": "balanced"}}},
		"plain fabric":  {"spec.network": map[string]any{"insecureFabric": true}},
		"on GPUs":       {"spec.backend": "CUDA"},
		"on large GPUs": cuda("spec.gpu", map[string]any{"deviceClassName": "h200", "selectors": []any{"true"}, "handleSize": "36Mi", "runtimeClassName": "nvidia", "sharedMemory": "4Gi"}),
		"by a plugin":   cuda("spec.gpu.resourceName", "nvidia.com/gpu"),
		"node memory":   {"spec.network": map[string]any{"shareNodeMemory": true}},
		"redundant 0":   {"spec.redundantExperts": int64(0)},
		"redundant":     {"spec.redundantExperts": int64(8), "spec.rebalance": map[string]any{"budget": "Automatic", "payBackSeconds": int64(0), "minGainPercent": int64(0)}},
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

// each of the first n layers by itself.
func each(n int) []any {
	var out []any
	for i := range int64(n) {
		out = append(out, layers(i, i, int64(2)))
	}
	return out
}

func TestChangeIsRefused(t *testing.T) {
	const anotherName = "make a MoEDeployment of another name beside this one"
	tests := map[string]struct {
		fields fields
		words  []string
	}{
		"revision":    {fields{"spec.model.revision": "r2"}, []string{"spec.model.revision", "does not work yet: " + anotherName}},
		"claim":       {fields{"spec.model.source.persistentVolumeClaim.claimName": "other"}, []string{"spec.model", anotherName}},
		"path":        {fields{"spec.model.source.persistentVolumeClaim.path": "other"}, []string{"spec.model", anotherName}},
		"granuleRows": {fields{"spec.model.granuleRows": int64(64)}, []string{"spec.model", anotherName}},
		"slabFormat":  {fields{"spec.model.slabFormat": "RowMajor"}, []string{"spec.model", "slabFormat cannot be changed", anotherName}},
		"image":       {fields{"spec.engine.image": "other"}, []string{"spec.engine", "cannot be changed while it serves: " + anotherName}},
		"args":        {fields{"spec.engine.args": []any{"-v"}}, []string{"spec.engine", anotherName}},
		"no args":     {fields{"spec.engine.args": nil}, []string{"spec.engine", anotherName}},
		"env":         {fields{"spec.engine.env": []any{map[string]any{"name": "A"}}}, []string{"spec.engine", anotherName}},
		"value":       {fields{"spec.engine.env": []any{map[string]any{"name": "LEVEL", "value": "2"}}}, []string{"spec.engine", anotherName}},
		"request":     {fields{"spec.engine.resources.requests": map[string]any{"cpu": "300m"}}, []string{"spec.engine", anotherName}},
		"no request":  {fields{"spec.engine.resources": nil}, []string{"spec.engine", anotherName}},
		"a request":   {fields{"spec.engine.resources.requests": map[string]any{"cpu": "200m", "memory": "1Gi"}}, []string{"spec.engine", anotherName}},
		"another one": {fields{"spec.engine.resources.requests": map[string]any{"memory": "200m"}}, []string{"spec.engine", anotherName}},
		"limit":       {fields{"spec.engine.resources.limits": map[string]any{"cpu": "1"}}, []string{"spec.engine", anotherName}},
		"claim of it": {fields{"spec.engine.resources.claims": []any{map[string]any{"name": "rdma"}}}, []string{"spec.engine", anotherName}},
		"memory":      {fields{"spec.limits.memoryPerRank": "65Mi"}, []string{"spec.limits", anotherName}},
		"KV":          {fields{"spec.limits.kvMemoryPerRank": "17Mi"}, []string{"spec.limits", anotherName}},
		"spareBanks":  {fields{"spec.limits.spareBanks": int64(3)}, []string{"spec.limits", anotherName}},
		"hugePages":   {fields{"spec.limits.hugePages": true}, []string{"spec.limits", anotherName}},
		"fabric":      {fields{"spec.network": map[string]any{"insecureFabric": true}}, []string{"spec.network.insecureFabric", anotherName}},
		"sharing":     {fields{"spec.network": map[string]any{"shareNodeMemory": true}}, []string{"spec.network.shareNodeMemory", anotherName}},
		"backend":     {fields{"spec.backend": "CUDA"}, []string{"spec.backend", "backend and gpu cannot be changed", anotherName}},
		"ranksPerPod": {fields{"spec.ranksPerPod": int64(2)}, []string{"spec.ranksPerPod", anotherName}},
		"replicas 0":  {fields{"spec.replicas": int64(0)}, []string{"spec.replicas", "to stop serving, delete the MoEDeployment"}},
	}
	c := newClient(t)
	namespace := newNamespace(t, c)
	created := smallestIn(t, namespace)
	set(t, created, "spec.engine", map[string]any{"args": []any{"-q"}, "env": []any{map[string]any{"name": "LEVEL", "value": "1"}},
		"resources": map[string]any{"requests": map[string]any{"cpu": "200m"}}})
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
}

func TestChangeIsAccepted(t *testing.T) {
	tests := map[string]fields{
		"mode":              {"spec.mode": "Tensor"},
		"mode Auto":         {"spec.mode": "Auto", "spec.autoscaling": map[string]any{"dryRun": true}},
		"mode Hybrid":       hybrid(layers(0, -1, "All")),
		"replicas":          {"spec.replicas": int64(6)},
		"model name":        {"spec.model.name": "other"},
		"gateway":           {"spec.gateway.replicas": int64(3)},
		"text":              {"spec.gateway.text": map[string]any{"image": "vllm", "reasoningParser": "qwen3", "resources": map[string]any{"limits": map[string]any{"memory": "4Gi"}}}},
		"transition":        {"spec.transition.timeoutSeconds": int64(5)},
		"scheduling":        {"spec.scheduling.nodeSelector": map[string]any{"disk": "fast"}},
		"same, other words": {"spec.limits.memoryPerRank": "65536Ki"},
		"same, in bytes":    {"spec.limits.kvMemoryPerRank": int64(16 << 20)},
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

// What says the same in other words is no change of the engine: amounts by value, and an empty list as none.
func TestTheSameEngineInOtherWordsIsNoChange(t *testing.T) {
	said := map[string]any{"requests": map[string]any{"cpu": "200m", "memory": "1Gi"}}
	tests := map[string]struct{ was, is map[string]any }{
		"a fraction":         {map[string]any{"resources": said}, map[string]any{"resources": map[string]any{"requests": map[string]any{"cpu": "0.2", "memory": "1Gi"}}}},
		"another unit":       {map[string]any{"resources": said}, map[string]any{"resources": map[string]any{"requests": map[string]any{"cpu": "200m", "memory": "1024Mi"}}}},
		"a number":           {map[string]any{"resources": said}, map[string]any{"resources": map[string]any{"requests": map[string]any{"cpu": "200m", "memory": int64(1 << 30)}}}},
		"no limits":          {map[string]any{"resources": said}, map[string]any{"resources": map[string]any{"requests": said["requests"], "limits": map[string]any{}}}},
		"no resources":       {map[string]any{}, map[string]any{"resources": map[string]any{"limits": map[string]any{}, "requests": map[string]any{}, "claims": []any{}}}},
		"no args, no env":    {map[string]any{}, map[string]any{"args": []any{}, "env": []any{}, "image": ""}},
		"none any more":      {map[string]any{"args": []any{}, "env": []any{}, "resources": map[string]any{}}, map[string]any{}},
		"env in other order": {map[string]any{"env": []any{map[string]any{"name": "A"}, map[string]any{"name": "B"}}}, map[string]any{"env": []any{map[string]any{"name": "B"}, map[string]any{"name": "A"}}}},
	}
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

// An unknown field is a misspelt one: strict clients (kubectl's default) are told.
func TestUnknownFieldIsRefused(t *testing.T) {
	c := newClient(t)
	object := smallestIn(t, newNamespace(t, c))
	set(t, object, "spec.replica", int64(4))
	err := client.WithFieldValidation(c, "Strict").Create(t.Context(), object)
	require.ErrorContains(t, err, `unknown field "spec.replica"`)
}

func TestLayoutTransitionSpecIsNeverChanged(t *testing.T) {
	c := newClient(t)
	transition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.tangram.dev/v1alpha1", "kind": "LayoutTransition",
		"metadata": map[string]any{"name": "demo-1", "namespace": newNamespace(t, c)},
		"spec": map[string]any{
			"deployment": "demo", "generation": int64(1), "what": "4 ranks Expert -> 6 ranks Expert", "fromEpoch": int64(1),
			"targetHash": "aa", "planHash": "bb", "ranks": int64(6), "mode": "Expert", "flips": int64(3),
			"members":     []any{"a.0.1", "b.0.1"},
			"expertBytes": int64(1), "expertBoundBytes": int64(1), "denseBytes": int64(0),
		},
	}}
	require.NoError(t, c.Create(t.Context(), transition))

	changed := transition.DeepCopy()
	set(t, changed, "spec.ranks", int64(7))
	refused(t, c.Update(t.Context(), changed), "change the MoEDeployment instead")

	set(t, transition, "status.phase", "Flipping")
	require.NoError(t, c.Status().Update(t.Context(), transition))
	set(t, transition, "status.phase", "Dancing")
	refused(t, c.Status().Update(t.Context(), transition), "status.phase", `"Succeeded"`)
}

// The operator reads typed objects, in which amounts are spelt anew (1024Mi: 1Gi). Its writes, a merge patch of
// the metadata and an update of the status, must not look like a change of the engine.
func TestWritesOfTheOperatorAreNoChangeOfTheEngine(t *testing.T) {
	c := newClient(t)
	namespace := newNamespace(t, c)
	object := smallestIn(t, namespace)
	set(t, object, "spec.engine.resources", map[string]any{"limits": map[string]any{"cpu": int64(1), "memory": "1024Mi"}})
	set(t, object, "spec.engine.args", []any{})
	require.NoError(t, c.Create(t.Context(), object))

	world := &v1alpha1.MoEDeployment{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), world))
	before := world.DeepCopy()
	world.Finalizers = append(world.Finalizers, v1alpha1.Finalizer)
	require.NoError(t, c.Patch(t.Context(), world, client.MergeFrom(before)))
	world.Status.Epoch = 1
	require.NoError(t, c.Status().Update(t.Context(), world))

	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	memory, _, err := unstructured.NestedString(object.Object, "spec", "engine", "resources", "limits", "memory")
	require.NoError(t, err)
	require.Equal(t, "1024Mi", memory, "the user's words are kept")
}
