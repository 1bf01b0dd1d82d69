// Command reader submits jobs of octavo over HTTP and reads their tokens from Redis. docs/wire.md says what it relies on.
//
//	go run . submit '{"model": "demo", "prompt": "JULIET:"}'    submit a job and follow it
//	go run . follow JOB [OFFSET]                                follow any job, behind so many tokens
//	go run . decode HEX...                                      entries and results as JSON
//
// It prints the text as it comes, then the end as JSON to standard error; with --events one line of JSON an event.
// Environment: OCTAVO_GATEWAY, OCTAVO_API_KEY, REDIS_URL. It needs Go 1.18 and no packages.
package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
)

func main() {
	asEvents := false
	words := []string{}
	for _, word := range os.Args[1:] {
		if word == "--events" {
			asEvents = true
		} else {
			words = append(words, word)
		}
	}
	completed, err := run(words, asEvents)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || !completed {
		os.Exit(1)
	}
}

func run(words []string, asEvents bool) (bool, error) {
	if len(words) < 2 {
		return false, fmt.Errorf("submit REQUEST | follow JOB [OFFSET] | decode HEX...")
	}
	redis := setting("REDIS_URL", "redis://127.0.0.1:6379")
	switch words[0] {
	case "submit":
		id, err := Submit(setting("OCTAVO_GATEWAY", "http://127.0.0.1:8000"), words[1], os.Getenv("OCTAVO_API_KEY"))
		if err != nil {
			return false, err
		}
		fmt.Fprintln(os.Stderr, id)
		return show(redis, id, 0, asEvents)
	case "follow":
		after := 0
		if len(words) > 2 {
			var err error
			if after, err = strconv.Atoi(words[2]); err != nil {
				return false, err
			}
		}
		return show(redis, words[1], int64(after), asEvents)
	case "decode":
		return true, decodeAll(words[1:])
	}
	return false, fmt.Errorf("unknown command %s", words[0])
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func show(redis, id string, after int64, asEvents bool) (bool, error) {
	completed := false
	err := Follow(redis, id, after, func(event Event) {
		completed = event.End != nil && event.End.Status == "completed"
		switch {
		case asEvents:
			printJSON(os.Stdout, event)
		case event.Reset:
			fmt.Print("\n--- again from the beginning ---\n")
		case event.End != nil:
			fmt.Fprintln(os.Stderr)
			printJSON(os.Stderr, event)
		default:
			fmt.Print(event.Tokens.Text)
		}
	})
	return completed, err
}

func decodeAll(words []string) error {
	for _, word := range words {
		data, err := hex.DecodeString(word)
		if err != nil {
			return err
		}
		if chunk, end, err := decodeEntry(data); err == nil && chunk != nil {
			printJSON(os.Stdout, map[string]any{"chunk": chunk})
		} else if err == nil {
			printJSON(os.Stdout, map[string]any{"end": end})
		} else if end, chunks, err := decodeResult(data); err == nil {
			printJSON(os.Stdout, map[string]any{"end": end, "chunks": chunks})
		} else {
			return err
		}
	}
	return nil
}

func printJSON(to *os.File, value any) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(to, "%s\n", line)
}
