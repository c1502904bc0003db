package controller

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Maximum lengths of texts for people, in bytes.
const (
	longestMessage = 1024 // of conditions and events: the API server's limit for events; for conditions it is 32768
	longestWords   = 300  // of one part of a message: a container's last line, a loss
)

// clip shortens a text to one line of at most n bytes, for a condition, an event or a list. It joins lines by "; " and
// replaces unprintable characters by spaces.
func clip(text string, n int) string {
	var lines []string
	for l := range strings.Lines(strings.ToValidUTF8(text, "?")) {
		printable := strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) {
				return r
			}
			return ' '
		}, l)
		if l = strings.TrimSpace(printable); l != "" {
			lines = append(lines, l)
		}
	}
	line := strings.Join(lines, "; ")
	if len(line) <= n {
		return line
	}
	end := n - len("...")
	for end > 0 && !utf8.RuneStart(line[end]) {
		end--
	}
	return line[:end] + "..."
}

// lastWords returns the last line of a container's log or termination message, where programs say why they end.
func lastWords(message string) string {
	message = strings.TrimSpace(message)
	return clip(message[strings.LastIndexByte(message, '\n')+1:], longestWords)
}
