//! Checks of the target of a request that do not depend on routes.

/// Finds a `%` that is not followed by two hexadecimal digits (RFC 3986, 2.1).
#[must_use]
pub fn find_invalid_escape(path: &str) -> Option<usize> {
    let bytes = path.as_bytes();
    let is_hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    let percents = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    percents.map(|(at, _)| at).find(|at| !(is_hex(at + 1) && is_hex(at + 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_sign_is_followed_by_two_hexadecimal_digits() {
        for (path, at) in [
            ("/a", None),
            ("/%2F%e9", None),
            ("/%", Some(1)),
            ("/%2", Some(1)),
            ("/%20/%zz", Some(5)),
            ("/%%20", Some(1)),
        ] {
            assert_eq!(find_invalid_escape(path), at, "{path}");
        }
    }
}
