package plancli

import (
	"fmt"
	"strconv"
)

// Count formats a number with commas between thousands.
func Count[T int | uint64](n T) string {
	digits := strconv.FormatInt(int64(n), 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Size formats bytes in decimal units: 1 GB is 1e9 bytes.
func Size(bytes uint64) string {
	if bytes == 0 {
		return "0"
	}
	for _, u := range []struct {
		of   float64
		name string
	}{{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if n := float64(bytes) / u.of; n >= .9995 {
			return fmt.Sprintf("%.2f %s", n, u.name)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}
