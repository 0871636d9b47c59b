# How guests in Rust are compiled, so that the same sources give the same bytes everywhere;
# sourced by the builds, which name their `workspace` before. Sets `fixtures`, `compiler` and,
# unless it is set, `target_dir`.
# shellcheck shell=bash

fixtures=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target_dir=${GUEST_TARGET_DIR:-$fixtures/target}

# choose_compiler SCRIPT [--check]: GUEST_COMPILER, else the pinned one; with --check,
# Debian's where rustup couldn't download that.
choose_compiler() {
    local script=$1
    shift
    compiler=${GUEST_COMPILER:-$(
        if [[ ${1-} == --check ]] && ! has_pinned; then echo debian; else echo pinned; fi
    )}
    case $compiler${1-} in
    pinned | pinned--check | debian--check) ;;
    debian)
        echo "only the pinned compiler's guests are kept; with Debian's, use --check" >&2
        exit 2
        ;;
    *)
        echo "usage: [GUEST_COMPILER=debian] $script [--check]" >&2
        exit 2
        ;;
    esac
}

has_pinned() {
    local channel
    channel=$(sed -n 's/^channel = "\(.*\)"$/\1/p' "$workspace/rust-toolchain.toml")
    command -v rustup >/dev/null || return 1
    rustup target list --installed --toolchain "$channel" 2>/dev/null | grep -qx wasm32-wasip2
}

# Cargo reads rust-toolchain.toml where it is started.
cargo_of_guests() {
    if [[ $compiler == debian ]]; then
        (cd / && RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 \
            CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld-19 \
            cargo "$@" -Zbuild-std=std,panic_abort \
            --manifest-path "$workspace/Cargo.toml" --target-dir "$target_dir")
    else
        (cd "$workspace" && cargo "$@" --target-dir "$target_dir")
    fi
}

# No path of the machine ends up in a module: neither in panic messages nor in DWARF.
export_remapping() {
    local cargo_home=${CARGO_HOME:-$HOME/.cargo} registry flags
    # Not in the workspace, whose pinned compiler may not be there.
    (cd / && cargo fetch --locked --quiet --manifest-path "$workspace/Cargo.toml")
    flags="--remap-path-prefix=$fixtures=guest-fixtures"
    for registry in "$cargo_home"/registry/src/*/; do
        flags+=$'\x1f'"--remap-path-prefix=${registry%/}=crates"
    done
    export CARGO_ENCODED_RUSTFLAGS=$flags
}

record_compiler() {
    if [[ $compiler == debian ]]; then /usr/bin/rustc -vV; else (cd "$workspace" && rustc -vV); fi |
        sed '/^host:/d'
}
