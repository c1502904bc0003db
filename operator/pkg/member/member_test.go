package member

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseInvertsString(t *testing.T) {
	for _, id := range []ID{{"u", 0, 1}, {"5f0c1a52-0c8f-4f5e-8f43-3c2f4e0b7c11", 7, 1732237594}, {"p", math.MaxUint32, math.MaxUint64}} {
		back, err := Parse(id.String())
		require.NoError(t, err)
		require.Equal(t, id, back)
		require.Equal(t, id.PodUID, PodOf(id.String()))
		require.Equal(t, id.Place().String(), id.String()[:len(id.Place().String())])
	}
	require.Equal(t, ID{"u", 0, 1}.Place(), ID{"u", 0, 2}.Place())
}

func TestParseRejectsInvalidIDs(t *testing.T) {
	for text, says := range map[string]string{
		"": "want POD/DEVICE/INCARNATION", "u": "want POD/DEVICE/INCARNATION", "u/0": "want POD/DEVICE/INCARNATION", "/0/1": "want POD/DEVICE/INCARNATION",
		"u/0/1/2": "want POD/DEVICE/INCARNATION",
		"u/x/1":   "device \"x\" is not a number", "u/-1/1": "device \"-1\" is not a number", "u/+1/1": "device \"+1\" is not a number",
		"u/4294967296/1": "device \"4294967296\" is not a number", "u /0/ 1": "incarnation \" 1\" is not a number",
		"u/0/x": "incarnation \"x\" is not a number", "u/0/0": "incarnation \"0\" is not a number",
		"u/0/18446744073709551616": "incarnation \"18446744073709551616\" is not a number",
		"u/00/1":                   "its numbers are not as", "u/0/01": "its numbers are not as",
	} {
		_, err := Parse(text)
		require.ErrorContains(t, err, "member \""+text+"\"")
		require.ErrorContains(t, err, says)
		require.Empty(t, PodOf(text))
	}
}
