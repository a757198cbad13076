-- Asks Tollgate whether a request may pass. The URL is in txn.tollgate_url, the answer's status is put into
-- txn.tollgate_status: 0 without an answer. All headers of the request are sent.
core.register_action("tollgate", { "http-req" }, function(txn)
    local headers = {}
    for name, values in pairs(txn.http:req_get_headers()) do
        -- The client sets these itself.
        if name ~= "host" and name ~= "content-length" and name ~= "transfer-encoding" and name ~= "connection" then
            headers[name] = {}
            for index = 0, #values do
                table.insert(headers[name], values[index])
            end
        end
    end
    local answer = core.httpclient():get({
        url = txn:get_var("txn.tollgate_url"),
        headers = headers,
        timeout = 1000,
    })
    txn:set_var("txn.tollgate_status", answer and answer.status or 0)
end, 0)
