// One side of a reconciliation by go-nostr's implementation, driven by lines of JSON.
//
// First line: {"items": [[timestamp, "id in hex"], …], "frame": bytes or 0}. Then {"start": true}
// or {"receive": "message in hex"}, each answered by {"message": "…"}; a client that is done answers
// {"message": "", "have": […], "need": […]}.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip77/negentropy"
	"github.com/nbd-wtf/go-nostr/nip77/negentropy/storage/vector"
)

type setup struct {
	Items [][2]any `json:"items"`
	Frame int      `json:"frame"`
}

type line struct {
	Start   bool   `json:"start"`
	Receive string `json:"receive"`
}

type answer struct {
	Message string   `json:"message"`
	Have    []string `json:"have,omitempty"`
	Need    []string `json:"need,omitempty"`
	Error   string   `json:"error,omitempty"`
}

func collect(from chan string, into *[]string, done chan bool) {
	for id := range from {
		*into = append(*into, id)
	}
	done <- true
}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	decoder := json.NewDecoder(in)
	encoder := json.NewEncoder(os.Stdout)
	var begin setup
	if err := decoder.Decode(&begin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	held := vector.New()
	for _, item := range begin.Items {
		held.Insert(nostr.Timestamp(item[0].(float64)), item[1].(string))
	}
	held.Seal()
	side := negentropy.New(held, begin.Frame)
	var have, need []string
	done := make(chan bool, 2)
	go collect(side.Haves, &have, done)
	go collect(side.HaveNots, &need, done)
	client := false
	for {
		var next line
		if decoder.Decode(&next) != nil {
			return
		}
		if next.Start {
			client = true
			encoder.Encode(answer{Message: side.Start()})
			continue
		}
		message, err := side.Reconcile(next.Receive)
		reply := answer{Message: message}
		if err != nil {
			reply.Error = err.Error()
		} else if client && message == "" {
			<-done
			<-done
			reply.Have, reply.Need = have, need
		}
		encoder.Encode(reply)
	}
}
