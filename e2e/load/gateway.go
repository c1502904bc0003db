package load

import (
	"fmt"
	"io"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// GatewayCounts are a gateway's counters since its start.
type GatewayCounts struct {
	Replays    float64 `json:"replays"`    // requests resubmitted with their tokens so far
	Orphaned   float64 `json:"orphaned"`   // requests without tokens among these: the rank left before it accepted them
	Conflicts  float64 `json:"conflicts"`  // tokens that differ from the one delivered for their position
	Duplicates float64 `json:"duplicates"` // tokens dropped: their position was delivered already
	Lost       float64 `json:"lost"`       // accepted requests that ended without their last token
}

// ReadGatewayCounts reads a gateway's /metrics. A missing counter is an error, so that it does not count as zero. Only
// replays may be missing: their series exists after the first replay.
func ReadGatewayCounts(metrics io.Reader) (GatewayCounts, error) {
	var c GatewayCounts
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(metrics)
	if err != nil {
		return c, fmt.Errorf("metrics of the gateway: %w", err)
	}
	for name, to := range map[string]*float64{"replays": &c.Replays, "orphaned_requests": &c.Orphaned, "conflicting_tokens": &c.Conflicts,
		"duplicate_tokens": &c.Duplicates, "lost_requests": &c.Lost} {
		family := families["tangram_gateway_"+name+"_total"]
		if family == nil && name != "replays" {
			return c, fmt.Errorf("metrics of the gateway: no tangram_gateway_%s_total", name)
		}
		for _, m := range family.GetMetric() {
			*to += m.GetCounter().GetValue()
		}
	}
	return c, nil
}

// Plus adds another gateway's counts.
func (c GatewayCounts) Plus(o GatewayCounts) GatewayCounts {
	return GatewayCounts{c.Replays + o.Replays, c.Orphaned + o.Orphaned, c.Conflicts + o.Conflicts, c.Duplicates + o.Duplicates, c.Lost + o.Lost}
}
