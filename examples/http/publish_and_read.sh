#!/bin/sh
# Publish a signed message (its bytes are in the file $2) and read its topic, with curl alone.
set -eu
get() { curl --fail-with-body --silent --show-error -H "Authorization: Bearer $TOKEN" "$@"; }

get "http://$GATEWAY/v1/topics" --get --data-urlencode "content_topic=$1"
get "http://$GATEWAY/v1/messages" --data-binary "@$2" \
    -H "Content-Type: application/vnd.luxrelay.messages"
get "http://$GATEWAY/v1/messages?limit=10"
get "http://$GATEWAY/v1/namespaces?limit=10"
