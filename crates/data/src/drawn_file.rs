//! Files of a set that is drawn: never over somebody else's.

use std::fs;
use std::io;
use std::path::Path;

/// Writes a file of a set whose labels are not there yet. `false` where another file, which is not empty, has the name: a set that
/// was stopped left the same bytes, or none after a power loss.
pub(crate) fn write_drawn(path: &Path, bytes: &[u8], is_own_set: bool) -> io::Result<bool> {
    if !is_own_set {
        match fs::read(path) {
            Ok(present) if present == bytes => return Ok(true),
            Ok(present) if !present.is_empty() => return Ok(false),
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
    }
    // A sibling, then moved into place. Not brought to disk one by one, which would take longer than drawing.
    let sibling = holdall_files::partial(path);
    fs::write(&sibling, bytes)?;
    fs::rename(&sibling, path)?;
    Ok(true)
}
