package v1alpha2

import corev1 "k8s.io/api/core/v1"

// Gateway is the OpenAI-compatible endpoint of a world.
type Gateway struct {
	// replicas is the number of gateway pods. The default is 2. A HorizontalPodAutoscaler for the gateway Deployment
	// takes over this number. With one replica, the loss of its node is an outage.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:default=2
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// service configures the Service <name>-gateway in front of the gateways.
	// +kubebuilder:default={}
	// +optional
	Service GatewayService `json:"service,omitempty"`
	// template is merged over the pods of gateways, by Kubernetes' strategic merge. Its containers are gateway and
	// text. A change starts a rollout of the gateways. The default of terminationGracePeriodSeconds is 600. A
	// terminating gateway accepts requests for 10 seconds more, until clients no longer reach it. Running streams can
	// use the rest of the time, less 5 seconds.
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.containers) || self.spec.containers.all(c, c.name in ['gateway', 'text'])",fieldPath=".spec.containers",message="The containers of a pod of gateways are gateway and text. Others are not supported."
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.initContainers)",fieldPath=".spec.initContainers",message="Pods of gateways have no init containers. Remove initContainers."
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.terminationGracePeriodSeconds) || self.spec.terminationGracePeriodSeconds >= 20",fieldPath=".spec.terminationGracePeriodSeconds",message="terminationGracePeriodSeconds of a gateway must be at least 20, because it accepts requests for 10 seconds after the start of its termination."
	// +optional
	Template PodTemplate `json:"template,omitempty"`
	// text configures how gateways convert between text and tokens. Without it, clients send and receive token ids, and
	// chat is not available.
	// +optional
	Text *Text `json:"text,omitempty"`
}

// GatewayService is the Service in front of the gateways.
//
// +kubebuilder:validation:XValidation:rule="!has(self.loadBalancerClass) || (has(self.type) && self.type == 'LoadBalancer')",fieldPath=".loadBalancerClass",message="loadBalancerClass is for services of type LoadBalancer. Set gateway.service.type to LoadBalancer, or remove loadBalancerClass."
type GatewayService struct {
	// type is the type of the Service. The default is ClusterIP.
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	// +kubebuilder:default=ClusterIP
	// +optional
	Type corev1.ServiceType `json:"type,omitempty"`
	// annotations are the annotations of the Service, e.g. for the load balancer of a cloud.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// loadBalancerClass is the class of a Service of type LoadBalancer. Kubernetes does not allow a change while the
	// type stays LoadBalancer.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	LoadBalancerClass *string `json:"loadBalancerClass,omitempty"`
}

// Tokenizer selects the tokenizer of a gateway.
// +kubebuilder:validation:Enum=Checkpoint;Bytes
type Tokenizer string

// The tokenizers.
const (
	TokenizerCheckpoint Tokenizer = "Checkpoint"
	TokenizerBytes      Tokenizer = "Bytes"
)

// Text configures the text server in each gateway pod. It is vLLM's own OpenAI server, without weights. It uses the
// tokenizer and the chat template of the checkpoint. A change starts a rollout of the gateways.
//
// +kubebuilder:validation:XValidation:rule="self.tokenizer != 'Bytes' || !(has(self.image) || has(self.toolCallParser) || has(self.reasoningParser) || has(self.chatTemplate) || has(self.args))",message="Tokenizer Bytes has no text server. Remove the other fields of text."
// +kubebuilder:validation:XValidation:rule="!has(self.args) || self.args.all(a, !a.matches('^--(model|tokenizer|served-model-name|max-model-len|host|port|uds|tokens-socket|text-socket|ready-file|tool-call-parser|enable-auto-tool-choice|reasoning-parser|chat-template)(=.*)?$'))",fieldPath=".args",message="The operator sets --model, --tokenizer, --served-model-name, --max-model-len, --host, --port, --uds and the sockets, and parsers and the chat template have their own fields. Remove them from args."
type Text struct {
	// tokenizer selects the tokenizer. Checkpoint, the default, uses the tokenizer of the checkpoint. Bytes makes each
	// byte a token, for test models with a vocabulary of 256 tokens.
	// +kubebuilder:default=Checkpoint
	// +optional
	Tokenizer Tokenizer `json:"tokenizer,omitempty"`
	// image is the image of the text server: the vLLM image. The default is the image of the engine vllm. With another
	// engine, set this field.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Image string `json:"image,omitempty"`
	// toolCallParser is vLLM's name of the tool call parser of the model, e.g. hermes. Without it, tool calls stay in
	// the text.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ToolCallParser string `json:"toolCallParser,omitempty"`
	// reasoningParser is vLLM's name of the reasoning parser of the model, e.g. qwen3. Without it, reasoning stays in
	// the text.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ReasoningParser string `json:"reasoningParser,omitempty"`
	// chatTemplate is a key of a ConfigMap in the same namespace that has a Jinja template. The default is the template
	// of the checkpoint.
	// +optional
	ChatTemplate *corev1.ConfigMapKeySelector `json:"chatTemplate,omitempty"`
	// args are additional flags of `vllm serve` that concern text, e.g. ["--default-chat-template-kwargs",
	// "{\"enable_thinking\": false}"].
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`
}
