package v1alpha2

import corev1 "k8s.io/api/core/v1"

// PodTemplate is merged over the pods that the operator creates, by Kubernetes' strategic merge. Pods keep the values
// with which they were created.
type PodTemplate struct {
	// metadata has the labels and annotations of the pods.
	// +optional
	Metadata PodMetadata `json:"metadata,omitempty"`
	// spec has the fields of the pods that you can set.
	// +optional
	Spec PodTemplateSpec `json:"spec,omitempty"`
}

// PodMetadata has the labels and annotations of the pods.
type PodMetadata struct {
	// labels are labels of the pods, e.g. the queue of a scheduler. Labels that belong to the operator are rejected.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('serving.tangram.dev/') && !k.startsWith('app.kubernetes.io/'))",message="Labels serving.tangram.dev/* and app.kubernetes.io/* belong to the operator. Remove them from the template."
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations are annotations of the pods, e.g. their networks. Annotations that belong to the operator are
	// rejected.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('serving.tangram.dev/') && k != 'controller.kubernetes.io/pod-deletion-cost')",message="Annotations serving.tangram.dev/* and the deletion cost are for single pods. Remove them from the template."
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PodTemplateSpec has the fields of a pod that you can set. The operator owns all others: commands, ports, probes,
// security, and its own volumes.
type PodTemplateSpec struct {
	// nodeSelector selects the nodes of the pods.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// affinity has the scheduling constraints of the pods.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// tolerations are the tolerations of the pods.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// topologySpreadConstraints are constraints in addition to the operator's, which spreads pods over nodes if
	// possible. A constraint for kubernetes.io/hostname changes the operator's. Others need a labelSelector.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
	// schedulerName is the name of the scheduler. The default is the scheduler of the cluster.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`
	// priorityClassName is the priority class of the pods.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// imagePullSecrets are Secrets for pulling all images of the pods.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// serviceAccountName is the service account of the pods. The default is an account of the operator without rights.
	// Its token is not mounted.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// dnsPolicy is the DNS policy of the pods.
	// +kubebuilder:validation:Enum=ClusterFirst;ClusterFirstWithHostNet;Default;None
	// +optional
	DNSPolicy corev1.DNSPolicy `json:"dnsPolicy,omitempty"`
	// dnsConfig is the DNS configuration of the pods.
	// +optional
	DNSConfig *corev1.PodDNSConfig `json:"dnsConfig,omitempty"`
	// resourceClaims are claims for dynamic resource allocation, e.g. for network devices. Containers name them in
	// resources.claims. The name gpu belongs to the operator.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.name != 'gpu')",message="The resource claim gpu belongs to the operator. Give your claim another name."
	// +listType=map
	// +listMapKey=name
	// +optional
	ResourceClaims []corev1.PodResourceClaim `json:"resourceClaims,omitempty"`
	// volumes are volumes of the pods in addition to the operator's. The names of the operator's volumes are rejected.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(v, !(v.name in ['run', 'agent', 'tmp', 'config', 'tls', 'tls-agent', 'tls-engine', 'models', 'shm', 'node-memory', 'sockets', 'chat']))",message="The volumes run, agent, tmp, config, tls, tls-agent, tls-engine, models, shm, node-memory, sockets and chat belong to the operator. Give your volume another name."
	// +listType=map
	// +listMapKey=name
	// +optional
	Volumes []VolumeTemplate `json:"volumes,omitempty"`
	// terminationGracePeriodSeconds is the time to drain a pod that is deleted, in seconds. The default is 300 for pods
	// of ranks, and 600 for pods of gateways.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +optional
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
	// initContainers are changes of the operator's init containers.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.name in ['hook', 'node-memory'])",message="The init containers of a pod are hook and node-memory. Others are not supported."
	// +listType=map
	// +listMapKey=name
	// +optional
	InitContainers []InitContainerTemplate `json:"initContainers,omitempty"`
	// containers are changes of the operator's containers.
	// +kubebuilder:validation:MaxItems=2
	// +listType=map
	// +listMapKey=name
	// +optional
	Containers []ContainerTemplate `json:"containers,omitempty"`
}

// VolumeTemplate is a volume of the pods. Exactly one source must be set.
//
// +kubebuilder:validation:XValidation:rule="[has(self.configMap), has(self.secret), has(self.emptyDir), has(self.persistentVolumeClaim), has(self.csi)].filter(x, x).size() == 1",message="A volume has exactly one source: configMap, secret, emptyDir, persistentVolumeClaim or csi."
type VolumeTemplate struct {
	// name is the name of the volume.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// configMap is a ConfigMap to mount.
	// +optional
	ConfigMap *corev1.ConfigMapVolumeSource `json:"configMap,omitempty"`
	// secret is a Secret to mount.
	// +optional
	Secret *corev1.SecretVolumeSource `json:"secret,omitempty"`
	// emptyDir is an empty folder that is deleted with the pod.
	// +optional
	EmptyDir *corev1.EmptyDirVolumeSource `json:"emptyDir,omitempty"`
	// persistentVolumeClaim is a claim in the same namespace.
	// +optional
	PersistentVolumeClaim *corev1.PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
	// csi is an ephemeral volume of a CSI driver.
	// +optional
	CSI *corev1.CSIVolumeSource `json:"csi,omitempty"`
}

// InitContainerTemplate has the fields of an init container that you can set.
type InitContainerTemplate struct {
	// name is the name of the init container: hook, or node-memory with network.nodeMemorySharing.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// imagePullPolicy is the pull policy of the image. The default is IfNotPresent.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// resources are the resources of the init container.
	// +optional
	Resources Resources `json:"resources,omitempty"`
}

// ContainerTemplate has the fields of a container that you can set.
type ContainerTemplate struct {
	// name is the name of the container. Pods of ranks have agent and engine; engine stands for each engine of the pod.
	// Pods of gateways have gateway and text.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// imagePullPolicy is the pull policy of the image. The default is IfNotPresent.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// resources are the resources of the container. The memory and the huge pages of an agent follow from spec.memory,
	// and are rejected here. Without a CPU request, an agent requests 100m, and an engine, a gateway and a text server
	// 200m each.
	// +optional
	Resources Resources `json:"resources,omitempty"`
	// env are environment variables in addition to the operator's. The names of the operator's variables are rejected:
	// POD_IP, POD_NAME, POD_UID, NODE_NAME and NVIDIA_*.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []EnvVar `json:"env,omitempty"`
	// envFrom adds environment variables from ConfigMaps and Secrets.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`
	// volumeMounts are mounts in addition to the operator's, below /mnt, /opt, /srv or /data.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=mountPath
	// +optional
	VolumeMounts []VolumeMount `json:"volumeMounts,omitempty"`
}

// EnvVar is an environment variable of a container, as in a Pod.
type EnvVar struct {
	// name is the name of the variable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!(self in ['POD_IP', 'POD_NAME', 'POD_UID', 'NODE_NAME']) && !self.startsWith('NVIDIA_')",message="The operator sets POD_IP, POD_NAME, POD_UID, NODE_NAME and NVIDIA_*. Remove them from env."
	// +required
	Name string `json:"name"`
	// value is the value of the variable.
	// +kubebuilder:validation:MaxLength=32768
	// +optional
	Value string `json:"value,omitempty"`
	// valueFrom takes the value from another object, e.g. from a Secret.
	// +optional
	ValueFrom *corev1.EnvVarSource `json:"valueFrom,omitempty"`
}

// VolumeMount mounts a volume of the template in a container, as in a Pod.
type VolumeMount struct {
	// name is the name of a volume of the template.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// mountPath is the path of the volume in the container.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^/(mnt|opt|srv|data)(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$')",message="Mount volumes below /mnt, /opt, /srv or /data. Other paths belong to the operator and to the images."
	// +required
	MountPath string `json:"mountPath"`
	// readOnly mounts the volume read-only. The default is false.
	// +optional
	ReadOnly bool `json:"readOnly,omitempty"`
	// subPath is the folder of the volume to mount. The default is its root.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	SubPath string `json:"subPath,omitempty"`
}
