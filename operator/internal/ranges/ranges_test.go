package ranges

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"tangram.dev/operator/pkg/layout"

	api "tangram.dev/api/v1alpha2"
)

func TestOfSpec(t *testing.T) {
	all, two := ptr.To(intstr.FromString(api.AllRanks)), ptr.To(intstr.FromInt32(2))
	require.Equal(t, layout.Ranges{{First: 0, Last: layout.ToTheEnd, ExpertGroup: 1, AttentionGroup: 1}, {First: 3, Last: 5, ExpertGroup: layout.AllRanks, AttentionGroup: 2}},
		OfSpec([]api.LayerRange{{}, {FirstLayer: 3, LastLayer: ptr.To[int32](5), Groups: api.Groups{ExpertGroup: all, AttentionGroup: two}}}))
	require.Nil(t, OfSpec(nil))
}

func TestStatusRoundTrip(t *testing.T) {
	in := layout.Ranges{{First: 0, Last: 3, ExpertGroup: 2, AttentionGroup: 1}, {First: 4, Last: 4, ExpertGroup: 1, AttentionGroup: 8}}
	require.Equal(t, []api.RangeStatus{{LastLayer: 3, ExpertGroup: 2, AttentionGroup: 1}, {FirstLayer: 4, LastLayer: 4, ExpertGroup: 1, AttentionGroup: 8}}, Status(in))
	require.Equal(t, in, OfStatus(Status(in)))
	require.Nil(t, Status(nil))
}
