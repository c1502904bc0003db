package plancli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnits(t *testing.T) {
	for n, want := range map[int]string{0: "0", 7: "7", 999: "999", 1000: "1,000", -1000: "-1,000", -999: "-999", 19025362944: "19,025,362,944"} {
		require.Equal(t, want, Count(n))
	}
	for n, want := range map[uint64]string{0: "0", 999: "999 B", 1000: "1.00 kB", 4096: "4.10 kB", 999999: "1.00 MB", 9437184: "9.44 MB", 19025362944: "19.03 GB", 1024 << 30: "1.10 TB"} {
		require.Equal(t, want, Size(n), n)
	}
}
