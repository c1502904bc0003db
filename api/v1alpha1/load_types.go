package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LoadStatus is what engines and gateways told of the load, for people and for what polls an API server: it is written
// every half minute at most, and only if it changed. What decides by the load reads the gateways.
type LoadStatus struct {
	// time of the reading.
	Time metav1.Time `json:"time"`
	// running requests: those that were admitted.
	Running int64 `json:"running"`
	// waiting requests: those that were not, and those that no rank has.
	Waiting int64 `json:"waiting"`
	// queueAge: so long the oldest of the waiting ones has waited.
	QueueAge metav1.Duration `json:"queueAge"`
	// kvUsedPercent of the pages of the KV cache.
	KVUsedPercent int32 `json:"kvUsedPercent"`
	// tokensPerSecond that clients were given, in the mean of the last minute.
	TokensPerSecond int64 `json:"tokensPerSecond"`
	// ttftP99: 99 of 100 answers of the last minute began within so long; absent if none ended.
	// +optional
	TTFTP99 *metav1.Duration `json:"ttftP99,omitempty"`
	// tpotP99: of 99 of 100 answers of the last minute the tokens came no further apart, in the mean of an answer; absent
	// if none with two tokens ended.
	// +optional
	TPOTP99 *metav1.Duration `json:"tpotP99,omitempty"`
	// problem: why nothing newer is known, or what of it is not whole.
	// +optional
	Problem string `json:"problem,omitempty"`
}
