//go:build race

package gateway

// raced: the race detector is on. It may fail by itself in a bubble with very much to do (https://github.com/golang/go/issues/78156).
const raced = true
