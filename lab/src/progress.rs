//! Messages about steps that take time, such as a download or a boot, for whoever waits for them.

use std::fmt;
use std::sync::Arc;

/// Passes messages to a listener. The default one drops them.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(&str) + Send + Sync>);

impl Progress {
    /// Passes each message to `listener`.
    pub fn new(listener: impl Fn(&str) + Send + Sync + 'static) -> Progress {
        Progress(Arc::new(listener))
    }

    /// Tells the listener which step begins now.
    pub fn say(&self, step: &str) {
        (self.0)(step);
    }
}

impl Default for Progress {
    fn default() -> Self {
        Progress::new(|_| {})
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}
