package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LoadStatus is the load that engines and gateways report, for users and for pollers of the API server. The operator
// writes it at most every 30 seconds, and only if it changed. Policies read the gateways directly.
type LoadStatus struct {
	// time is the time of the sample.
	Time metav1.Time `json:"time"`
	// running is the number of requests that engines have admitted.
	Running int64 `json:"running"`
	// waiting is the number of requests that no engine has admitted, or that no rank owns.
	Waiting int64 `json:"waiting"`
	// queueAge is the age of the oldest waiting request.
	QueueAge metav1.Duration `json:"queueAge"`
	// kvUsedPercent is the percentage of blocks of the KV cache that are used.
	KVUsedPercent int32 `json:"kvUsedPercent"`
	// tokensPerSecond is the number of tokens per second that clients received, on average over the last minute.
	TokensPerSecond int64 `json:"tokensPerSecond"`
	// ttftP99 is the 99th percentile of the time to the first token in the last minute. It is absent if no response
	// ended.
	// +optional
	TTFTP99 *metav1.Duration `json:"ttftP99,omitempty"`
	// tpotP99 is the 99th percentile of a response's mean time between tokens in the last minute. It is absent if no
	// response with at least two tokens ended.
	// +optional
	TPOTP99 *metav1.Duration `json:"tpotP99,omitempty"`
	// problem explains why the sample is old or incomplete.
	// +optional
	Problem string `json:"problem,omitempty"`
}
