#!/bin/sh
# Start a stream, lose the connection in the middle, and read on from the next event: with curl alone.
#
#   longwire serve &     # in a checkout: make serve &
#   sh examples/curl.sh "Why is the sky blue?"
set -eu

url=${LONGWIRE_URL:-http://127.0.0.1:8080}
# As it stands in a JSON string: quotes and backslashes escaped, and no line breaks or tabs.
question=$(printf '%s' "${1:-Tell me about the sea.}" | tr -s '[:cntrl:]' ' ' | sed 's/[\\"]/\\&/g')
events=${EVENTS:-5} # how many to read before the line is cut
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

ask() { curl --silent --show-error --no-buffer -H "Authorization: Bearer ${LONGWIRE_API_KEY:-none}" "$@"; }

fail() { echo "$1" >&2 && exit 1; }

model=$(ask "$url/v1/models" | sed -n 's/.*"data": *\[ *{ *[^}]*"id": *"\([^"]*\)".*/\1/p')
[ -n "$model" ] || fail "No model at $url: is the gateway running (longwire serve) and does LONGWIRE_URL name it?"

# grace: the generation goes on for 30 s while nobody reads. head leaves after a few events, and curl with it.
ask "$url/v1/chat/completions" -D "$folder/head" \
    -H 'Content-Type: application/json' -H 'Longwire-On-Disconnect: grace=30' \
    -d "{\"model\": \"$model\", \"stream\": true, \"max_tokens\": 200, \"messages\": [{\"role\": \"user\", \"content\": \"$question\"}]}" 2>/dev/null |
    grep --line-buffered '^data:' | head -n "$events" | tee "$folder/first"
stream=$(sed -n 's/^[Ll]ocation: *//p' "$folder/head" | tr -d '\r')
[ -n "$stream" ] || fail "The gateway started no stream: $(cat "$folder/head")"

# The events of a POST are numbered from 0 and carry no id, so the last one that we have is the count less one.
last=$(($(wc -l <"$folder/first") - 1))
echo "--- the line was cut after event $last; $stream goes on:"
ask "$url$stream" -H 'Accept: text/event-stream' -H "Last-Event-ID: 0-$last"

echo "--- its state:"
ask "$url$stream" -H 'Accept: application/json'
echo
