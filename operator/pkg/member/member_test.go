package member

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseIsTheInverseOfString(t *testing.T) {
	for _, id := range []ID{{"u", 0, 1}, {"5f0c1a52-0c8f-4f5e-8f43-3c2f4e0b7c11", 7, 1732237594}, {"p", math.MaxUint32, math.MaxUint64}} {
		back, err := Parse(id.String())
		require.NoError(t, err)
		require.Equal(t, id, back)
		require.Equal(t, id.PodUID, PodOf(id.String()))
		require.Equal(t, id.Place().String(), id.String()[:len(id.Place().String())])
	}
	require.Equal(t, ID{"u", 0, 1}.Place(), ID{"u", 0, 2}.Place())
}

func TestWhatIsNoMember(t *testing.T) {
	for _, text := range []string{"", "u", "u/0", "/0/1", "u/0/1/2", "u/x/1", "u/0/x", "u/0/0", "u/-1/1", "u/00/1", "u/0/01", "u/+1/1", "u/4294967296/1",
		"u/0/18446744073709551616", "u /0/ 1"} {
		_, err := Parse(text)
		require.ErrorContains(t, err, "member \""+text+"\"")
		require.Empty(t, PodOf(text))
	}
}
