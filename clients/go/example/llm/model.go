package main

import (
	"context"
	"iter"
	"time"
)

var sentence = []string{"Limits", " are", " kept", " exactly", ".", "\n"}

// model is a small fake: it repeats a sentence.
type model struct {
	// The time between two tokens.
	pace time.Duration
}

// answer yields the tokens as they come. They end after these sentences, at the most tokens, or with the context.
func (m model) answer(ctx context.Context, sentences, maxTokens int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range min(sentences*len(sentence), maxTokens) {
			if i > 0 && !m.pause(ctx) {
				return
			}
			if !yield(sentence[i%len(sentence)]) {
				return
			}
		}
	}
}

// pause says whether the context goes on.
func (m model) pause(ctx context.Context) bool {
	timer := time.NewTimer(m.pace)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
