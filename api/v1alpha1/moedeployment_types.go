package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Mode of a world: how experts and attention heads are shared out over its ranks.
// +kubebuilder:validation:Enum=Expert;Tensor;Hybrid;Auto
type Mode string

// The modes.
const (
	// ModeExpert: each expert is whole on one rank, each request's heads too.
	ModeExpert Mode = "Expert"
	// ModeTensor: each rank holds a shard of every expert, and of the heads where the engine splits them.
	ModeTensor Mode = "Tensor"
	// ModeAuto: a policy chooses between the two.
	ModeAuto Mode = "Auto"
	// ModeHybrid: each layer is shared out as spec.layout says. In a status also what has no other mode, as in the middle of a switch.
	ModeHybrid Mode = "Hybrid"
)

// Strategy of a transition.
// +kubebuilder:validation:Enum=Smooth;Fast
type Strategy string

// The strategies.
const (
	// StrategySmooth moves in the background and flips between two steps. How long clients then wait for tokens: the benches
	// smooth and transition, and the demo's table.
	StrategySmooth Strategy = "Smooth"
	// StrategyFast computes no step while it moves, for ten seconds of each flip at most: it is over sooner, and every stream waits.
	StrategyFast Strategy = "Fast"
)

// MoEDeploymentSpec is the wanted world.
//
// +kubebuilder:validation:XValidation:rule="self.mode != 'Hybrid' || has(self.layout)",fieldPath=".layout",message="mode Hybrid needs layout, which says what groups the layers have, e.g. layout: [{expertGroup: 2, attentionGroup: 1}]"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Hybrid' || !has(self.autoscaling)",fieldPath=".autoscaling",message="mode Hybrid stays as layout says: autoscaling is for Expert, Tensor and Auto, leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.autoscaling) || self.mode == 'Auto' || has(self.autoscaling.slo)",fieldPath=".autoscaling",message="without slo autoscaling decides in mode Auto alone: set mode: Auto or slo, or leave autoscaling out"
// +kubebuilder:validation:XValidation:rule="!has(self.autoscaling) || !has(self.autoscaling.maxReplicas) || (self.autoscaling.maxReplicas + (has(self.standby) ? self.standby : 0)) * self.ranksPerPod <= 8192",fieldPath=".autoscaling.maxReplicas",message="a world has at most 8192 ranks, those of standby included: lower maxReplicas, standby or ranksPerPod"
// +kubebuilder:validation:XValidation:rule="((has(self.replicas) ? self.replicas : 1) + (has(self.standby) ? self.standby : 0)) * self.ranksPerPod <= 8192",fieldPath=".replicas",message="a world has at most 8192 ranks, those of standby included: lower replicas, standby or ranksPerPod"
// +kubebuilder:validation:XValidation:rule="!has(self.redundantExperts) || self.redundantExperts == 0 || has(self.rebalance)",fieldPath=".redundantExperts",message="redundantExperts are placed by rebalance: set rebalance too, e.g. rebalance: {}, or leave redundantExperts out"
// +kubebuilder:validation:XValidation:rule="self.ranksPerPod == oldSelf.ranksPerPod",fieldPath=".ranksPerPod",message="ranksPerPod cannot be changed: make a MoEDeployment of another name beside this one"
// +kubebuilder:validation:XValidation:rule="self.backend == oldSelf.backend && has(self.gpu) == has(oldSelf.gpu) && (!has(self.gpu) || self.gpu == oldSelf.gpu)",fieldPath=".backend",message="backend and gpu cannot be changed: make a MoEDeployment of another name beside this one"
// +kubebuilder:validation:XValidation:rule="!has(self.gpu) || self.backend == 'CUDA'",fieldPath=".gpu",message="gpu is for backend CUDA: set backend: CUDA, or leave gpu out"
// +kubebuilder:validation:XValidation:rule="self.backend != 'CUDA' || self.ranksPerPod == 1",fieldPath=".ranksPerPod",message="with backend CUDA a pod has one rank and one GPU: set ranksPerPod: 1 and more replicas"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !has(self.gateway.text) || self.gateway.text.tokenizer == 'Bytes' || has(self.gateway.text.image) || has(self.engine.image)",fieldPath=".gateway.text",message="the reference engine's image has no text server: set gateway.text.image to the vLLM image, or engine.image"
// +kubebuilder:validation:XValidation:rule="self.backend != 'CUDA' || !self.limits.hugePages",fieldPath=".limits.hugePages",message="hugePages are of the host's memory, and backend CUDA has weights and KV cache on the GPU: leave hugePages out"
type MoEDeploymentSpec struct {
	// replicas is the number of pods of the world. `kubectl scale` and autoscalers set it. With autoscaling.slo it is the number to begin with, and the one
	// in force is in status.policy.replicas. Left out, it stays as it is (status.wantedReplicas): the operator writes it back, or 1 for a new world.
	// To stop serving, delete the MoEDeployment: 0 is refused.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8192
	// +kubebuilder:validation:XValidation:rule="self >= 1",message="a world has at least one pod: to stop serving, delete the MoEDeployment"
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// standby is the number of pods beyond replicas that are kept ready: image there, agent up, engine attached, no weights. Who is
	// to join, also in place of a pod that died, is one of them if one is ready; another is made then. A pod that leaves stays as one.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=64
	// +optional
	Standby int32 `json:"standby,omitempty"`

	// ranksPerPod is the number of ranks (accelerators) of each pod.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:default=1
	// +optional
	RanksPerPod int32 `json:"ranksPerPod,omitempty"`

	// mode: Expert (whole experts spread over the ranks), Tensor (every expert sliced over all ranks, and each request's heads, but
	// for engines that keep those on one rank, as vLLM's do), Auto: a policy recommends
	// one of the two by the load, and says why in status.policy; it is followed if autoscaling.dryRun is false; or Hybrid: each layer as layout says. It may be changed while requests stream.
	// +kubebuilder:default=Expert
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// layout of a world in mode Hybrid, by ranges of layers; a layer of no range is as in mode Expert. It is read in that mode alone, so that it may
	// stay there while the world is in another one. Where it does not fit the world's width or the model, the world stays as it is, and Degraded has
	// the reason LayoutDoesNotFit.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=24
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.filter(b, (!has(b.lastLayer) || a.firstLayer <= b.lastLayer) && (!has(a.lastLayer) || b.firstLayer <= a.lastLayer)).size() == 1)",message="ranges of layers overlap: a layer may be in one only, and a range without lastLayer goes on to the last layer"
	// +listType=atomic
	// +optional
	Layout []LayerRange `json:"layout,omitempty"`

	// autoscaling says how mode Auto decides, and, with slo, by what the operator decides how many pods there are.
	// +optional
	Autoscaling *Autoscaling `json:"autoscaling,omitempty"`

	// redundantExperts is the number of expert slots per layer beyond one copy of each expert, which rebalance fills
	// with copies of the experts that are asked for most; rounded up to the same number on each rank. They take memory
	// of limits.memoryPerRank. In mode Tensor, where every rank has a slice of every expert, they wait for mode Expert
	// (Balanced=Unknown, NotInModeExpert); in mode Hybrid they are in the layers whose experts are whole.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	// +optional
	RedundantExperts int32 `json:"redundantExperts,omitempty"`

	// rebalance says how experts follow the load. Absent: they stay where they are.
	// +optional
	Rebalance *Rebalance `json:"rebalance,omitempty"`

	// model says which weights are served.
	// +required
	Model Model `json:"model"`

	// engine is the template of the inference process, one per rank.
	// +required
	Engine Engine `json:"engine"`

	// backend of weights and KV cache: Host (memory of the pods), or CUDA (memory of GPUs; engines must take it).
	// +kubebuilder:default=Host
	// +optional
	Backend Backend `json:"backend,omitempty"`

	// gpu says which GPU a rank gets, with backend CUDA.
	// +optional
	GPU *GPU `json:"gpu,omitempty"`

	// scheduling of the pods of ranks.
	// +kubebuilder:default={}
	// +optional
	Scheduling Scheduling `json:"scheduling,omitempty"`

	// gateway in front of the world.
	// +kubebuilder:default={}
	// +optional
	Gateway Gateway `json:"gateway,omitempty"`

	// certificates that protect the world's connections.
	// +optional
	Certificates Certificates `json:"certificates,omitempty"`

	// network between the pods of the world.
	// +kubebuilder:default={}
	// +optional
	Network Network `json:"network,omitempty"`

	// transition says how the world changes shape.
	// +kubebuilder:default={}
	// +optional
	Transition Transition `json:"transition,omitempty"`

	// suspend: no transition is begun any more; the flip that runs ends first. What serves goes on, and what dies is
	// repaired, but not replaced.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// limits of memory. They cannot be changed yet.
	// +required
	Limits Limits `json:"limits"`
}

// Model names the weights.
//
// +kubebuilder:validation:XValidation:rule="self.revision == oldSelf.revision",fieldPath=".revision",message="a change of revision does not work yet: make a MoEDeployment of another name beside this one"
// +kubebuilder:validation:XValidation:rule="self.source == oldSelf.source && (has(self.granuleRows) ? self.granuleRows : 0) == (has(oldSelf.granuleRows) ? oldSelf.granuleRows : 0) && self.slabFormat == oldSelf.slabFormat",message="the model's source, granuleRows and slabFormat cannot be changed: make a MoEDeployment of another name beside this one"
type Model struct {
	// name under which clients ask for it; the MoEDeployment's name if empty.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// revision of the weights; part of every cache key and layout.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Revision string `json:"revision"`
	// source of the checkpoint: a folder with config.json and safetensors.
	// +required
	Source ModelSource `json:"source"`
	// granuleRows is the smallest cut of an expert's inner dimension, in rows: a multiple of the
	// quantisation block. An expert can be sliced over at most moe_intermediate_size / granuleRows ranks. Left out: at most 128, and so few that 8 ranks can
	// share an expert.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	// +optional
	GranuleRows int32 `json:"granuleRows,omitempty"`
	// slabFormat is how pieces of experts lie in memory. Engines say which they take, and an agent refuses one that does not take its own.
	// GranuleMajor: a shard is one range, so that experts are cut and joined in long copies. RowMajor: the matrices lie as in the checkpoint, gate and
	// up one behind the other, as the kernels of other engines want them.
	// +kubebuilder:default=GranuleMajor
	// +optional
	SlabFormat SlabFormat `json:"slabFormat,omitempty"`
}

// SlabFormat is how pieces of experts lie in memory.
//
// +kubebuilder:validation:Enum=GranuleMajor;RowMajor
type SlabFormat string

// The formats.
const (
	GranuleMajor SlabFormat = "GranuleMajor"
	RowMajor     SlabFormat = "RowMajor"
)

// ModelSource is where the checkpoint lies. Exactly one member is set.
//
// +kubebuilder:validation:XValidation:rule="has(self.persistentVolumeClaim)",message="name a persistentVolumeClaim that holds the checkpoint"
type ModelSource struct {
	// persistentVolumeClaim of the same namespace, mounted read-only in every pod of ranks.
	// +optional
	PersistentVolumeClaim *ClaimSource `json:"persistentVolumeClaim,omitempty"`
}

// ClaimSource is a folder on a claim.
type ClaimSource struct {
	// claimName of the PersistentVolumeClaim.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	ClaimName string `json:"claimName"`
	// path of the checkpoint's folder on the volume, relative; empty for its root.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="path is relative to the volume and may not hold '..'"
	// +optional
	Path string `json:"path,omitempty"`
}

// Engine is the template of the inference process.
//
// +kubebuilder:validation:XValidation:rule="(has(self.image) && self.image.size() > 0 ? [self.image] : []) == (has(oldSelf.image) && oldSelf.image.size() > 0 ? [oldSelf.image] : []) && self.imagePullPolicy == oldSelf.imagePullPolicy && (has(self.args) ? self.args : []) == (has(oldSelf.args) ? oldSelf.args : []) && (has(self.env) ? self.env : []) == (has(oldSelf.env) ? oldSelf.env : [])",message="the engine cannot be changed while it serves: make a MoEDeployment of another name beside this one"
// +kubebuilder:validation:XValidation:rule="(has(self.resources) && has(self.resources.limits) ? self.resources.limits : {}).size() == (has(oldSelf.resources) && has(oldSelf.resources.limits) ? oldSelf.resources.limits : {}).size() && (has(self.resources) && has(self.resources.limits) ? self.resources.limits : {}).all(k, k in (has(oldSelf.resources) && has(oldSelf.resources.limits) ? oldSelf.resources.limits : {}) && quantity(string((has(self.resources) && has(self.resources.limits) ? self.resources.limits : {})[k])).compareTo(quantity(string((has(oldSelf.resources) && has(oldSelf.resources.limits) ? oldSelf.resources.limits : {})[k]))) == 0)",message="the engine cannot be changed while it serves: make a MoEDeployment of another name beside this one"
// +kubebuilder:validation:XValidation:rule="(has(self.resources) && has(self.resources.requests) ? self.resources.requests : {}).size() == (has(oldSelf.resources) && has(oldSelf.resources.requests) ? oldSelf.resources.requests : {}).size() && (has(self.resources) && has(self.resources.requests) ? self.resources.requests : {}).all(k, k in (has(oldSelf.resources) && has(oldSelf.resources.requests) ? oldSelf.resources.requests : {}) && quantity(string((has(self.resources) && has(self.resources.requests) ? self.resources.requests : {})[k])).compareTo(quantity(string((has(oldSelf.resources) && has(oldSelf.resources.requests) ? oldSelf.resources.requests : {})[k]))) == 0)",message="the engine cannot be changed while it serves: make a MoEDeployment of another name beside this one"
// +kubebuilder:validation:XValidation:rule="(has(self.resources) && has(self.resources.claims) ? self.resources.claims : []) == (has(oldSelf.resources) && has(oldSelf.resources.claims) ? oldSelf.resources.claims : [])",message="the engine cannot be changed while it serves: make a MoEDeployment of another name beside this one"
// +kubebuilder:validation:XValidation:rule="!has(self.args) || self.args.all(a, !a.matches('^--(agent-socket|token-file|device|mesh-listen|serve-listen|advertise|tls-ca|tls-cert|tls-key)(=.*)?$'))",fieldPath=".args",message="--agent-socket, --token-file, --device, --mesh-listen, --serve-listen, --advertise and --tls-* are given by the operator: leave them out of args"
// +kubebuilder:validation:XValidation:rule="!has(self.args) || self.args.all(a, !a.matches('^--insecure-fabric(=.*)?$'))",fieldPath=".args",message="--insecure-fabric is for engines and agents alike: leave it out of args and set network.insecureFabric"
// +kubebuilder:validation:XValidation:rule="!has(self.env) || self.env.all(e, e.name != 'POD_IP')",fieldPath=".env",message="POD_IP is given by the operator: leave it out of env"
type Engine struct {
	// image of the engine: any that takes the flags which Tangram gives (docs/engines.md), runs as any user and writes below /tmp alone.
	// Empty: the reference engine that the operator was installed with.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Image string `json:"image,omitempty"`
	// imagePullPolicy of all images of the pod.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +kubebuilder:default=IfNotPresent
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// args beyond those that Tangram gives, e.g. ["--max-model-len", "512"]. Flags for tests of faults are refused.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, a.startsWith('--fault'))",message="flags that begin with --fault make an engine fail for tests: leave them out"
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`
	// env of the engine.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
	// resources of each engine container. Nothing said of processors: a request of 200m.
	// +optional
	Resources Resources `json:"resources,omitempty"`
}

// Resources of a container, as in a Pod. Amounts are compared by value: 0.2 and 200m are no change.
type Resources struct {
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Limits map[corev1.ResourceName]resource.Quantity `json:"limits,omitempty"`
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Requests map[corev1.ResourceName]resource.Quantity `json:"requests,omitempty"`
	// claims of the pod's resourceClaims that the container uses.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Claims []corev1.ResourceClaim `json:"claims,omitempty"`
}

// Requirements of a container.
func (r Resources) Requirements() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Limits: r.Limits, Requests: r.Requests, Claims: r.Claims}
}

// Scheduling of pods of ranks; new pods take what is set when they are made.
type Scheduling struct {
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// agentResources of the container that holds weights and KV cache. Its memory request and limit
	// (and huge pages) are computed from limits; what is set here for them is refused. Nothing said of processors: a
	// request of 100m. In a flip engines wait for their agents: less than half of what an engine asks for delays streams where processors are short.
	// +kubebuilder:validation:XValidation:rule="(!has(self.requests) || !self.requests.exists(k, k == 'memory' || k.startsWith('hugepages-'))) && (!has(self.limits) || !self.limits.exists(k, k == 'memory' || k.startsWith('hugepages-')))",message="the agent's memory follows from spec.limits: leave it out here"
	// +optional
	AgentResources corev1.ResourceRequirements `json:"agentResources,omitempty"`
	// terminationGracePeriodSeconds is the time in which a pod that somebody deletes is drained.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=300
	// +optional
	TerminationGracePeriodSeconds int64 `json:"terminationGracePeriodSeconds,omitempty"`
}

// Gateway is the OpenAI-compatible endpoint in front of a world.
type Gateway struct {
	// replicas of the gateway. With one alone, the loss of its node is an outage.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:default=2
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// serviceType of the Service <name>-gateway.
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	// +kubebuilder:default=ClusterIP
	// +optional
	ServiceType corev1.ServiceType `json:"serviceType,omitempty"`
	// resources of the gateway's container. Nothing said of processors: a request of 200m, as every stream waits for it.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// terminationGracePeriodSeconds of a gateway that is to end, by a rollout, a drain or a scale. The first 10 it answers
	// new requests, until nobody sends it any more; the rest, less 5, is what the longest stream has to end: set it to
	// what that takes.
	// +kubebuilder:validation:Minimum=20
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=600
	// +optional
	TerminationGracePeriodSeconds int64 `json:"terminationGracePeriodSeconds,omitempty"`
	// text says how gateways make tokens of text, and text of tokens. Left out: clients send token ids and get token ids, and there is no chat.
	// +optional
	Text *Text `json:"text,omitempty"`
}

// Tokenizer of a gateway.
// +kubebuilder:validation:Enum=Checkpoint;Bytes
type Tokenizer string

// Tokenizers.
const (
	TokenizerCheckpoint Tokenizer = "Checkpoint"
	TokenizerBytes      Tokenizer = "Bytes"
)

// Text is a text server beside each gateway: vLLM's own OpenAI server, without weights, with the tokenizer and the chat template of the checkpoint.
//
// +kubebuilder:validation:XValidation:rule="self.tokenizer != 'Bytes' || !(has(self.image) || has(self.toolCallParser) || has(self.reasoningParser) || has(self.chatTemplate) || has(self.args) || has(self.resources))",message="tokenizer Bytes needs no text server: leave the other fields of text out"
// +kubebuilder:validation:XValidation:rule="!has(self.args) || self.args.all(a, !a.matches('^--(model|tokenizer|served-model-name|max-model-len|host|port|uds|tokens-socket|text-socket|ready-file|tool-call-parser|enable-auto-tool-choice|reasoning-parser|chat-template)(=.*)?$'))",fieldPath=".args",message="--model, --tokenizer, --served-model-name, --max-model-len, --host, --port, --uds and the sockets are given by the operator, and parsers and chat template have fields of their own: leave them out of args"
type Text struct {
	// tokenizer: Checkpoint takes that of the checkpoint. Bytes: a token is a byte, which is right for test models whose vocabulary has 256 tokens.
	// +kubebuilder:default=Checkpoint
	// +optional
	Tokenizer Tokenizer `json:"tokenizer,omitempty"`
	// image of the text server; empty: engine.image, which must be the vLLM image then.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Image string `json:"image,omitempty"`
	// toolCallParser of the model, as vLLM calls it, e.g. hermes. Empty: tool calls stay in the text.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ToolCallParser string `json:"toolCallParser,omitempty"`
	// reasoningParser of the model, as vLLM calls it, e.g. qwen3. Empty: reasoning stays in the text.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ReasoningParser string `json:"reasoningParser,omitempty"`
	// chatTemplate is a key of a ConfigMap of the same namespace with a Jinja template; left out: the checkpoint's own.
	// +optional
	ChatTemplate *corev1.ConfigMapKeySelector `json:"chatTemplate,omitempty"`
	// args are more flags of `vllm serve` that concern text, e.g. ["--default-chat-template-kwargs", "{\"enable_thinking\": false}"].
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`
	// resources of the text server. Nothing said: requests of 200m and 1Gi, and a limit of 2Gi.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// Certificates of a world.
type Certificates struct {
	// issuerSecretName names a Secret of the same namespace with the authority that signs the world's certificates: in
	// tls.crt a self-signed certificate, in tls.key its ECDSA key, as a certificate manager makes and renews them. Empty:
	// the operator makes an authority by itself.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	IssuerSecretName string `json:"issuerSecretName,omitempty"`
}

// Network between the pods of a world.
type Network struct {
	// insecureFabric: weights, KV cache and what engines tell each other in a step cross the network in plain text, and whoever
	// reaches a pod's port is believed to be one of the world. Only for a network that nobody else can reach. Calls to agents
	// and from gateways stay encrypted. While it is true the condition InsecureFabric is there.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="network.insecureFabric cannot be changed, since all pods of a world must have the same: make a MoEDeployment of another name beside this one"
	// +kubebuilder:default=false
	// +optional
	InsecureFabric bool `json:"insecureFabric"`
	// shareNodeMemory: agents of the world on one node show each other their memory, so that weights and KV cache between them are
	// copied there and cross no network; with backend CUDA by the GPUs themselves, where they reach each other. Their pods get a folder of the node (a hostPath volume), which takes whoever administers
	// the namespace: its label serving.tangram.dev/share-node-memory must be "allowed", and its Pod Security admit hostPath
	// volumes. Without the label no pod is made, and Degraded tells.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="network.shareNodeMemory cannot be changed, since pods keep the volumes that they were made with: make a MoEDeployment of another name beside this one"
	// +kubebuilder:default=false
	// +optional
	ShareNodeMemory bool `json:"shareNodeMemory"`
}

// Transition says how the world changes shape.
type Transition struct {
	// strategy of transitions: Smooth serves on while bytes move; Fast does not, and is over sooner. A repair has none: nobody steps in it.
	// +kubebuilder:default=Smooth
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`
	// timeoutSeconds without progress after which a phase is given up: the attempt is aborted
	// and the old layout serves on.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=60
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// stagingPercent of its time for which a worker of a transition may move bytes while requests are served; it sleeps the rest.
	// Whatever it says, such workers take only the processor time that serving leaves: less than 100 leaves links and
	// memory to serving, too, and transitions take longer. Pods that are there keep the share that they were made with.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=100
	// +optional
	StagingPercent int32 `json:"stagingPercent,omitempty"`
	// maxStepStretchPercent by which steps may take longer while bytes of a transition are staged, by strategy Smooth: where they do, workers
	// sleep more, down to a tenth of their time. Fast computes no step meanwhile and needs no bound. Pods that are there keep what they
	// were made with.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=100
	// +optional
	MaxStepStretchPercent int32 `json:"maxStepStretchPercent,omitempty"`
	// historyLimit is the number of ended LayoutTransitions that are kept.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=10
	// +optional
	HistoryLimit int32 `json:"historyLimit,omitempty"`
}

// Limits of a rank's memory. Amounts are compared by value: 1Gi and 1024Mi are no change.
//
// +kubebuilder:validation:XValidation:rule="quantity(string(self.memoryPerRank)).compareTo(quantity(string(oldSelf.memoryPerRank))) == 0 && quantity(string(self.kvMemoryPerRank)).compareTo(quantity(string(oldSelf.kvMemoryPerRank))) == 0 && self.spareBanks == oldSelf.spareBanks && self.hugePages == oldSelf.hugePages",message="limits cannot be changed: make a MoEDeployment of another name beside this one"
type Limits struct {
	// memoryPerRank is the pool for experts and dense weights of one rank, in bytes.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="memoryPerRank must be above 0: say how much, e.g. 16Gi"
	// +required
	MemoryPerRank resource.Quantity `json:"memoryPerRank"`
	// kvMemoryPerRank is the KV cache of one rank, in bytes.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="kvMemoryPerRank must be above 0: say how much, e.g. 16Gi"
	// +required
	KVMemoryPerRank resource.Quantity `json:"kvMemoryPerRank"`
	// spareBanks is the number of layers that one flip can rewrite: more is faster and costs the
	// memory of as many layers during a switch of modes.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +kubebuilder:default=2
	// +optional
	SpareBanks int32 `json:"spareBanks,omitempty"`
	// hugePages: both pools lie in pages of 2 MiB that the node has set aside (hugepages-2Mi, which pods then ask for), and experts
	// begin at whole ones. Transitions are two to three times as fast: pages are mapped, not copied, and a page of 4 KiB
	// costs more to map than its bytes cost to copy. For models whose experts are several MiB.
	// +kubebuilder:default=false
	// +optional
	HugePages bool `json:"hugePages"`
}

// Member of the layout in force.
type Member struct {
	// rank in the layout.
	Rank int32 `json:"rank"`
	// id: pod UID, device, incarnation.
	ID string `json:"id"`
	// pod that holds it.
	Pod string `json:"pod"`
	// node of the pod.
	// +optional
	Node string `json:"node,omitempty"`
}

// CurrentTransition tells how far the running transition is.
type CurrentTransition struct {
	// name of the LayoutTransition.
	Name string `json:"name"`
	// phase of the running flip.
	Phase string `json:"phase"`
	// flip that runs, from 1, of flips.
	Flip  int32 `json:"flip"`
	Flips int32 `json:"flips"`
	// bytesDone of bytesTotal of this flip.
	BytesDone  int64 `json:"bytesDone"`
	BytesTotal int64 `json:"bytesTotal"`
}

// MoEDeploymentStatus is what the agents report.
type MoEDeploymentStatus struct {
	// conditions: Available, Progressing, Degraded, Ready, RepairReady, CertificatesValid; Balanced while spec.rebalance is set; Optimal in mode Auto; and while
	// they are True, Reconciling, Stalled and InsecureFabric.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// state in one word, for people: the reason of the condition that matters most now.
	// +optional
	State string `json:"state,omitempty"`
	// replicas is the number of pods that selector matches.
	// +optional
	Replicas int32 `json:"replicas"`
	// wantedReplicas is the number of pods that the world is to have: spec.replicas, or what was decided with autoscaling.slo.
	// +optional
	WantedReplicas int32 `json:"wantedReplicas,omitempty"`
	// readyReplicas is the number of pods all of whose ranks are in the layout in force.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// readyStandby is the number of pods in no layout that are ready to join.
	// +optional
	ReadyStandby int32 `json:"readyStandby,omitempty"`
	// selector of the pods of ranks, as autoscalers read it.
	// +optional
	Selector string `json:"selector,omitempty"`
	// epoch of the layout in force; 0: none yet.
	// +optional
	Epoch int64 `json:"epoch"`
	// layoutHash of the layout in force, SHA-256, hex.
	// +optional
	LayoutHash string `json:"layoutHash,omitempty"`
	// mode that the layout in force has; Hybrid while layers differ.
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// layout in force, by ranges of layers: each layer is in one, and groups are numbers of ranks. It may be copied to spec.layout.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +optional
	Layout []RangeStatus `json:"layout,omitempty"`
	// width is the number of ranks of the layout in force.
	// +optional
	Width int32 `json:"width"`
	// revision of the weights that are served.
	// +optional
	Revision string `json:"revision,omitempty"`
	// members of the layout in force, by rank.
	// +listType=map
	// +listMapKey=rank
	// +optional
	Members []Member `json:"members,omitempty"`
	// transition that runs now.
	// +optional
	Transition *CurrentTransition `json:"transition,omitempty"`
	// recentTransitions are the last few that ended, newest first, one line each.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	// +optional
	RecentTransitions []RecentTransition `json:"recentTransitions,omitempty"`
	// rebalance tells what was measured and decided last; only while spec.rebalance is set.
	// +optional
	Rebalance *RebalanceStatus `json:"rebalance,omitempty"`
	// policy tells what mode Auto decided, and why; only in that mode.
	// +optional
	Policy *PolicyStatus `json:"policy,omitempty"`
	// memory that weights and KV cache lie in, and how bytes come between ranks, as the agents tell.
	// +optional
	Memory *MemoryStatus `json:"memory,omitempty"`
	// load that engines and gateways told of lately.
	// +optional
	Load *LoadStatus `json:"load,omitempty"`
	// endpoint of the gateway inside the cluster.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
}

// RecentTransition is one line of `kubectl describe`.
type RecentTransition struct {
	Name string `json:"name"`
	// what it did, e.g. "4 ranks Expert -> 6 ranks Expert".
	What string `json:"what"`
	// outcome: Succeeded, Failed, Superseded or Aborted.
	Outcome TransitionPhase `json:"outcome"`
	Ended   metav1.Time     `json:"ended"`
	// message of a failure.
	// +optional
	Message string `json:"message,omitempty"`
}

// MoEDeployment is one world of ranks that serves one Mixture-of-Experts model and changes
// its shape while it serves.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=moed,categories=all
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.mode`
// +kubebuilder:printcolumn:name="Width",type=integer,JSONPath=`.status.width`,description="ranks of the layout in force"
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="Pods",type=string,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Wanted",type=integer,JSONPath=`.status.wantedReplicas`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40",message="the name may have at most 40 characters: names of pods and Services are made from it"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="the name must start with a letter and hold only lower-case letters, digits and '-': names of Services are made from it"
type MoEDeployment struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +required
	Spec MoEDeploymentSpec `json:"spec"`
	// +optional
	Status MoEDeploymentStatus `json:"status,omitempty"`
}

// MoEDeploymentList is a list of MoEDeployment.
//
// +kubebuilder:object:root=true
type MoEDeploymentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MoEDeployment `json:"items"`
}
