std = "luajit"
max_line_length = 120
max_comment_line_length = false
files["spec"] = { std = "luajit+busted" }
exclude_files = { "build/**", "bench/**/target/**", "csrc/test/installed/*" }
include_files = { "**/*.lua", "**/*.rockspec", ".luacheckrc" }
files["**/*.rockspec"] = { std = "+rockspec" }
