//go:build race

package gateway

// raced: the race detector is on. It can fail without a race in a very busy bubble
// (https://github.com/golang/go/issues/78156).
const raced = true
