//! The two sets of a retrieval.

/// One of the two sets of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The set that searches.
    Query,
    /// The set that is searched.
    Gallery,
}

impl Side {
    pub(crate) fn other(self) -> Side {
        match self {
            Side::Query => Side::Gallery,
            Side::Gallery => Side::Query,
        }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Query => "query",
            Side::Gallery => "gallery item",
        })
    }
}
