#!/usr/bin/env bash
# Profiles $COMMAND on the commit $BASE and on the present tree, and compares. Exit code of `stallwise compare`; where the noise
# is too large to tell, 0 unless ALLOW_INCONCLUSIVE is false.
set -euo pipefail
work=$(mktemp -d)
trap 'git worktree remove --force "$work/base-tree" 2>/dev/null || true' EXIT
git fetch --quiet --depth 1 origin "$BASE" 2>/dev/null || true
git worktree add --quiet --detach "$work/base-tree" "$BASE"
profile() { # FOLDER: the same command, each in its own tree
  # The words of COMMAND are meant to be split, as a shell would.
  (cd "$1" && eval "stallwise profile --max-time \"$MAX_TIME\" -o \"$2\" $COMMAND" >&2)
}
profile "$work/base-tree" "$work/base"
profile "$PWD" "$work/head"
set +e
stallwise compare "$work/base" "$work/head" --fail-if-slower "$LIMIT" | tee "$work/answer.txt"
code=${PIPESTATUS[0]}
set -e
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
  { echo '```'; cat "$work/answer.txt"; echo '```'; } >> "$GITHUB_STEP_SUMMARY"
fi
if [ "$code" = 3 ] && [ "${ALLOW_INCONCLUSIVE:-true}" = true ]; then
  echo "Inconclusive: the noise is larger than $LIMIT. A longer max-time, or a quiet runner, would tell." >&2
  exit 0
fi
exit "$code"
